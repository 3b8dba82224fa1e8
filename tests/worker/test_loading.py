"""Runners are made of settings, and settings that an engine does not have are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from baton.decode.settings import DecodeSettings
from baton.engine.pool_size import USUAL_BLOCKS, PoolBounds, PoolSize
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


def test_a_mock_has_the_usual_number_of_blocks() -> None:
    """It keeps no K and V, so that no memory bounds them; a number that is asked for is taken."""
    chosen, asked = (
        load_runner(DecodeSettings(model_dir=DEMO, engine="mock", **numbers)) for numbers in ({}, {"num_blocks": 12})
    )

    assert (chosen.num_blocks, asked.num_blocks) == (USUAL_BLOCKS, 12)


@pytest.mark.parametrize("engine", ["torch", "mlx"])
def test_settings_of_the_pool_reach_the_engine(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Share, batch and pass are those of the node."""
    pytest.importorskip({"torch": "torch", "mlx": "mlx.core"}[engine])
    bounds = {"device_memory_share": 1 / 3, "max_batch_size": 3, "max_step_tokens": 77}
    seen: list[PoolBounds] = []

    def choose(num_blocks: int | None, memory: Any, model: Any, bounds: PoolBounds, **_: Any) -> PoolSize:
        assert num_blocks is None
        seen.append(bounds)
        return PoolSize(5, "a test says so")

    module = {"torch": "torch.loader", "mlx": "mlx.runner"}[engine]
    monkeypatch.setattr(f"baton.engine.runners.{module}.choose_pool_size", choose)
    runner = load_runner(DecodeSettings(model_dir=DEMO, engine=engine, **bounds))

    assert seen == [PoolBounds(1 / 3, 3, 77)]
    assert runner.num_blocks == 5
