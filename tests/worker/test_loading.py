"""Runners are made of settings, and settings that an engine does not have are refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.decode.settings import DecodeSettings
from baton.errors import ConfigurationError
from baton.worker.loading import load_runner

DEMO = Path(__file__).parents[2] / "services/baton/demo/checkpoint"


@pytest.mark.parametrize("engine", ["mock", "mlx"])
def test_engines_of_one_device_share_nothing_out(engine: str) -> None:
    """Tensor parallelism is torch's."""
    settings = DecodeSettings(model_dir=DEMO, engine=engine, tensor_parallel=2)

    with pytest.raises(ConfigurationError, match="tensor_parallel 2: engine m"):
        load_runner(settings)
