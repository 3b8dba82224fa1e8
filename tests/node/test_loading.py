"""Runners are made of settings: what an engine does not have is refused by name, what is left open is explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from baton.config.container_limits import Cores
from baton.decode.settings import DecodeSettings
from baton.demo import checkpoint_dir
from baton.engine.kv_cache.pool_size import USUAL_BLOCKS, PoolBounds, PoolSize
from baton.errors import ConfigurationError
from baton.node.loading import Computing, choose_computing, load_runner

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

    monkeypatch.setattr("baton.engine.kv_cache.pool_size.choose_pool_size", choose)
    runner = load_runner(DecodeSettings(model_dir=DEMO, engine=engine, **bounds))

    (chosen,) = seen
    assert (chosen.memory_share, chosen.max_batch_size, chosen.max_step_tokens) == (1 / 3, 3, 77)
    assert 0 < chosen.beside_bytes < 2**40
    assert chosen.beside_cause.endswith(" in reserve")
    assert runner.num_blocks == 5


def choose(folder: Path, flags: str = "", *, num_cores: int = 4, **settings: Any) -> Computing:
    """Choose on a machine whose processor has some abilities."""
    cpu_info = folder / "cpuinfo"
    cpu_info.write_text(f"processor : 0\nflags\t: fpu {flags} avx2\n", encoding="utf-8")
    cores = Cores(num_cores, f"{num_cores} of 64 by the quota")
    return choose_computing(DecodeSettings(model_dir=checkpoint_dir(), **settings), cores, cpu_info)


@pytest.mark.parametrize(("num_cores", "num_threads"), [(1, 1), (2, 1), (8, 7)])
def test_one_core_is_left_to_the_event_loop(tmp_path: Path, num_cores: int, num_threads: int) -> None:
    """A container with a quota of one core has one thread, and the log says where the number is from."""
    chosen = choose(tmp_path, num_cores=num_cores)

    assert chosen.num_threads == num_threads
    assert f"{num_cores} of 64 by the quota" in chosen.threads_cause
    assert "not pinned" in chosen.threads_cause


def test_threads_that_are_asked_for_are_taken(tmp_path: Path) -> None:
    """Also more than there are cores."""
    assert choose(tmp_path, num_threads=9)[:2] == (
        9,
        "num_threads says so; not pinned: they stay where the affinity of the process lets the system move them",
    )


@pytest.mark.parametrize(
    ("flags", "settings", "dtype", "cause"),
    [
        ("amx_bf16 amx_tile", {"dtype": "auto"}, "bfloat16", "the processor has amx_bf16"),
        ("avx512_bf16", {"dtype": "auto"}, "float32", "the processor has no amx_bf16"),
        ("", {"dtype": "auto", "device": "cuda:0"}, "bfloat16", "GPUs"),
        ("", {"dtype": "auto", "engine": "mlx"}, "bfloat16", "MLX"),
        ("amx_bf16", {"dtype": "auto", "engine": "mock"}, "bfloat16", "the processor has amx_bf16"),
        ("amx_bf16", {"dtype": "float32"}, "float32", "dtype says so"),
    ],
)
def test_the_number_format_is_what_the_device_is_fast_at(
    tmp_path: Path, flags: str, settings: dict[str, str], dtype: str, cause: str
) -> None:
    """What is asked for wins; otherwise bfloat16 where products in it are the hardware's own."""
    chosen = choose(tmp_path, flags, **settings)

    assert chosen.dtype == dtype
    assert chosen.dtype_cause.startswith(cause)
