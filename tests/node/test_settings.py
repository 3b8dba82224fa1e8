"""Settings that prefill and decode nodes share."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.config.settings import load_settings, parse_flags
from baton.decode.settings import DecodeSettings
from baton.demo import checkpoint_dir
from baton.errors import ConfigurationError


@pytest.mark.parametrize(
    ("advertise_address", "advertised"),
    [
        ("", "127.0.0.1:8030"),
        ("10.2.3.4", "10.2.3.4:8030"),
        ("10.2.3.4:9000", "10.2.3.4:9000"),
        ("fd00::12", "[fd00::12]:8030"),
        ("[fd00::12]:9000", "[fd00::12]:9000"),
    ],
)
def test_a_node_is_advertised_by_host_or_by_host_and_port(advertise_address: str, advertised: str) -> None:
    """The last group of an IPv6 address is no port."""
    settings = DecodeSettings(model_dir=checkpoint_dir(), advertise_address=advertise_address)

    assert settings.advertised(8030) == advertised


def test_adapters_are_named_by_one_flag_each_or_by_one_text() -> None:
    """`--lora a=x --lora b=y` and `a=x, b=y`, which variables and files have, say the same."""
    flags = ["--model-dir", str(checkpoint_dir())]
    repeated = load_settings(DecodeSettings, parse_flags(DecodeSettings, [*flags, "--lora", "a=x", "--lora=b=y/z"]))
    joined = load_settings(DecodeSettings, parse_flags(DecodeSettings, [*flags, "--lora", "a=x, b=y/z"]))

    assert repeated.adapter_folders == joined.adapter_folders == {"a": Path("x"), "b": Path("y/z")}
    assert DecodeSettings(model_dir=checkpoint_dir()).adapter_folders == {}


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ("folder", "lora: expected NAME=FOLDER, got 'folder'"),
        ("=folder", "lora: expected NAME=FOLDER, got '=folder'"),
        ("name=", "lora: expected NAME=FOLDER, got 'name='"),
        ("a=x,a=y", "lora: 'a' names more than one of model and adapters"),
        ("tiny=x", "lora: 'tiny' names more than one of model and adapters"),
    ],
)
def test_adapters_without_a_name_of_their_own_are_refused(lora: str, message: str) -> None:
    """The setting is named, and what it had."""
    flags = {"model_dir": str(checkpoint_dir()), "model_name": "tiny", "lora": lora}

    with pytest.raises(ConfigurationError, match=message):
        load_settings(DecodeSettings, flags)


@pytest.mark.parametrize(("num_blocks", "expected"), [("auto", "auto"), ("512", 512), (512, 512)])
def test_blocks_are_a_number_or_left_to_the_node(num_blocks: str | int, expected: str | int) -> None:
    """Flags and variables are text, files have numbers; by default the node chooses."""
    flags = {"model_dir": str(checkpoint_dir()), "num_blocks": num_blocks}

    assert load_settings(DecodeSettings, flags).num_blocks == expected
    assert DecodeSettings(model_dir=checkpoint_dir()).num_blocks == "auto"


@pytest.mark.parametrize(
    "flags", [{"num_blocks": "0"}, {"num_blocks": "some"}, {"device_memory_share": "0"}, {"device_memory_share": "1.1"}]
)
def test_sizes_of_a_pool_that_cannot_be_are_refused_by_name(flags: dict[str, str]) -> None:
    """The flag is named."""
    (name,) = flags

    with pytest.raises(ConfigurationError, match=f"flag --{name.replace('_', '-')}: "):
        load_settings(DecodeSettings, {"model_dir": str(checkpoint_dir()), **flags})
