"""Runners are made of settings, and settings that an engine does not have are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from baton.decode.settings import DecodeSettings
from baton.errors import ConfigurationError
from baton.worker.loading import load_runner

DEMO = Path(__file__).parents[2] / "services/baton/demo/checkpoint"


@pytest.mark.parametrize("engine", ["mock", "mlx"])
@pytest.mark.parametrize("setting", [{"tensor_parallel": 2}, {"weight_dtype": "int8"}])
def test_what_only_torch_does_is_refused_by_name(engine: str, setting: dict[str, Any]) -> None:
    """Other engines run on one device, with weights as they are."""
    settings = DecodeSettings(model_dir=DEMO, engine=engine, **setting)
    named = " ".join(f"{name} {value}" for name, value in setting.items())

    with pytest.raises(ConfigurationError, match=f"{named}: engine {engine}"):
        load_runner(settings)


def test_adapters_are_refused_where_nothing_is_computed() -> None:
    """The mock engine would ignore them."""
    settings = DecodeSettings(model_dir=DEMO, engine="mock", lora=f"mine={DEMO}")

    with pytest.raises(ConfigurationError, match=r"lora mine=.*: engine mock computes no adapters"):
        load_runner(settings)


@pytest.mark.parametrize("engine", ["mock", "torch"])
def test_kv_in_8_bits_is_refused_where_only_mlx_has_it(engine: str) -> None:
    """Other engines keep K and V in the number format of the model."""
    settings = DecodeSettings(model_dir=DEMO, engine=engine, kv_quantization="8")

    with pytest.raises(ConfigurationError, match=f"kv_quantization 8: engine {engine}"):
        load_runner(settings)
