"""What two registered nodes can exchange KV in, and what becomes of it in a placement."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.capacity.wire import WireAbility
from baton.config.loading import load_settings
from baton.errors import ConfigurationError, InvalidFieldError
from baton.router.settings import RouterSettings
from baton.router.wire import description_from_proto, description_to_proto
from baton.router.wires import wire_options
from router.samples import DGX, MAC

INT8 = WireAbility("int8", 4e9, 8e9, 0.004, 0.001)
FP8 = WireAbility("fp8", 1e9, 2e9)
SENDER = replace(DGX, wire_abilities=(INT8, FP8, WireAbility("float16", 1e9, 1e9)))
RECEIVER = replace(MAC, wire_abilities=(replace(INT8, unpack_bytes_per_second=2e9, key_loss=9.0),))


def test_a_pair_can_do_what_both_can_and_the_cache_allows() -> None:
    """At the slower one's rate, with the sender's losses; float16 is no smaller than a bfloat16 cache."""
    own, int8 = wire_options(SENDER, RECEIVER)

    assert (own.dtype, own.key_bytes, own.value_bytes, own.key_loss) == ("bfloat16", 65536, 65536, 0.0)
    assert (int8.dtype, int8.key_bytes, int8.key_loss, int8.value_loss) == ("int8", 32 * 8 * 132, 0.004, 0.001)
    assert int8.key_pack_seconds == pytest.approx(65536 / 2e9)


def test_an_older_node_exchanges_the_cache_as_it_is() -> None:
    """It says nothing of formats."""
    assert [option.dtype for option in wire_options(SENDER, MAC)] == ["bfloat16"]
    assert [option.dtype for option in wire_options(DGX, RECEIVER)] == ["bfloat16"]


def test_abilities_travel_in_the_description() -> None:
    """What was not measured stays so; a format that this process does not know is left out."""
    message = description_to_proto(SENDER)
    message.wire_abilities.add(dtype=99, pack_bytes_per_second=1.0, unpack_bytes_per_second=1.0)  # type: ignore[arg-type]

    assert description_from_proto(message).wire_abilities == SENDER.wire_abilities


@pytest.mark.parametrize(
    ("field", "value"), [("pack_bytes_per_second", 0.0), ("unpack_bytes_per_second", -1.0), ("key_loss", -0.1)]
)
def test_an_ability_out_of_range_is_refused(field: str, value: float) -> None:
    """By the name of the field."""
    message = description_to_proto(SENDER)
    setattr(message.wire_abilities[0], field, value)
    with pytest.raises(InvalidFieldError, match=field):
        description_from_proto(message)


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("auto", ("auto", "auto", 0.5)),
        ("int8", ("int8", "int8", 0.5)),
        ("cache/fp8", ("cache", "fp8", 0.5)),
    ],
)
def test_the_setting_names_k_and_v(text: str, policy: tuple[str, str, float]) -> None:
    """One name for both, or two."""
    assert RouterSettings(kv_wire_dtype=text, kv_allowed_loss=0.5).wire_policy() == policy


@pytest.mark.parametrize("values", [{"kv_wire_dtype": "int4"}, {"kv_wire_dtype": "int8/"}, {"kv_allowed_loss": "-1"}])
def test_a_bad_setting_is_refused_by_its_name(values: dict[str, str]) -> None:
    """Before anything starts."""
    with pytest.raises(ConfigurationError, match=next(iter(values)).replace("_", "-")):
        load_settings(RouterSettings, values)
