"""What two registered nodes can exchange KV in, and what becomes of it in a placement."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from baton.capacity.kv_transfer import WireAbility, WirePolicy
from baton.config.settings import load_settings
from baton.errors import ConfigurationError, InvalidFieldError
from baton.kv.kv_format import KvDtype
from baton.router.kv_compatibility import mismatch, wire_options
from baton.router.nodes import NodeDescription
from baton.router.proto import description_from_proto
from baton.router.settings import RouterSettings
from router.samples import DGX, MAC, description_to_proto

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


def _with_cache(node: NodeDescription, dtype: KvDtype, *abilities: WireAbility) -> NodeDescription:
    return replace(node, layout=replace(node.layout, dtype=dtype), wire_abilities=abilities)


BF16, F16 = WireAbility("bfloat16", 4e9, 8e9, 0.002, 0.001), WireAbility("float16", 4e9, 8e9, 0.0, 0.0)


def test_a_wider_cache_takes_a_narrower_one_as_it_is() -> None:
    """Nothing is lost, whatever is allowed; 8-bit formats serve a slow link, but none with scales of a cache."""
    affine8 = replace(INT8, dtype="affine8")
    sender = _with_cache(DGX, KvDtype.BFLOAT16, INT8, affine8)
    receiver = _with_cache(MAC, KvDtype.FLOAT32, BF16, INT8, affine8)
    own, int8 = wire_options(sender, receiver)

    assert mismatch(sender, receiver, WirePolicy()) == ""
    assert (own.dtype, own.key_bytes, own.key_loss, own.is_conversion) == ("bfloat16", 65536, 0.0, False)
    assert own.key_pack_seconds == pytest.approx(2 * 65536 / 8e9), "the receiver unpacks, the sender does nothing"
    assert int8.dtype == "int8"


@pytest.mark.parametrize(
    ("sender", "receiver", "ability", "allowed_loss", "reason"),
    [
        ("float32", "bfloat16", BF16, 0.003, ""),
        ("float32", "bfloat16", BF16, 0.0029, "rounding to it loses 0.003 nats, allowed are 0.0029"),
        ("float32", "bfloat16", replace(BF16, key_loss=math.inf), 1e9, "rounding to it loses inf nats"),
        ("bfloat16", "float16", F16, 0.1, ""),
        ("bfloat16", "float16", F16, 0.0, "rounding to it loses 0 nats, allowed are 0"),
        ("float16", "bfloat16", INT8, 1.0, "the nodes know no format for both"),
    ],
)
def test_a_narrower_cache_is_rounded_to_only_where_that_loss_is_allowed(
    sender: str, receiver: str, ability: WireAbility, allowed_loss: float, reason: str
) -> None:
    """Else the pair is no candidate, and the reason names both formats."""
    prefiller = _with_cache(DGX, KvDtype(sender), ability)
    decoder = _with_cache(MAC, KvDtype(receiver))
    said = mismatch(prefiller, decoder, WirePolicy(allowed_loss=allowed_loss))

    assert reason in said
    if reason:
        assert f"dtype: {sender} there, {receiver} here" in said
    else:
        assert said == ""
        (own,) = wire_options(prefiller, decoder)
        assert (own.dtype, own.is_conversion) == (receiver, True)


def test_an_operator_who_names_the_format_permits_its_loss() -> None:
    """As everywhere."""
    prefiller, decoder = _with_cache(DGX, KvDtype.FLOAT32, BF16), _with_cache(MAC, KvDtype.BFLOAT16)

    assert mismatch(prefiller, decoder, WirePolicy("bfloat16", "bfloat16")) == ""
    assert "loses" in mismatch(prefiller, decoder, WirePolicy("bfloat16", "auto"))
    assert "loses" in mismatch(prefiller, decoder, WirePolicy("fp8", "fp8"))


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
