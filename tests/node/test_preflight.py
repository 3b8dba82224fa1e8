"""What keeps a node from starting is known before its process is, without a framework."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from baton.config.container_limits import Memory
from baton.decode.settings import DecodeSettings
from baton.demo import checkpoint_dir
from baton.engine.checkpoint.model_folder import read_checkpoint
from baton.errors import ConfigurationError
from baton.node import preflight
from baton.node.preflight import NodeNeeds, check_main_memory, check_node

DEMO = read_checkpoint(checkpoint_dir())


def checked(**settings: Any) -> NodeNeeds:
    """Check a node of the demo model."""
    return check_node(DecodeSettings(model_dir=checkpoint_dir(), **settings), DEMO)


@pytest.mark.parametrize(("dtype", "num_bytes"), [("float32", 4), ("bfloat16", 2)])
def test_a_node_takes_its_weights_in_its_number_format(dtype: str, num_bytes: int) -> None:
    """In main memory, where its device is the processor."""
    needs = checked(engine="torch", dtype=dtype)

    assert needs == ("torch on cpu", dtype, num_bytes * DEMO.num_parameters)
    assert checked(engine="mock").main_bytes == 0


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"device": "gpu 0"}, "device 'gpu 0': expected cpu, cuda, cuda:N or mps"),
        ({"engine": "mlx", "tensor_parallel": 2}, "tensor_parallel 2: engine mlx runs on one device"),
        ({"lora": "mine=/nowhere"}, "lora mine: /nowhere: no adapter_config.json"),
    ],
)
def test_what_cannot_start_is_refused_by_name(settings: dict[str, Any], problem: str) -> None:
    """As the node itself would say, some seconds later."""
    with pytest.raises(ConfigurationError) as error:
        checked(**settings)

    assert problem in error.value.message


@pytest.mark.parametrize(
    ("has_cuda", "num_devices", "problem"),
    [(False, 0, "built without CUDA"), (True, 1, "'cuda:1' is not present: this machine shows 1 CUDA devices")],
)
def test_a_gpu_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, has_cuda: bool, num_devices: int, problem: str
) -> None:
    """Because torch cannot use it, or the driver does not show it."""
    monkeypatch.setattr(preflight, "_torch_has_cuda", lambda: has_cuda)
    monkeypatch.setattr(preflight, "_num_cuda_devices", lambda: num_devices)

    with pytest.raises(ConfigurationError, match=problem):
        checked(device="cuda:1")


def test_a_gpu_that_is_there_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights take no main memory."""
    monkeypatch.setattr(preflight, "_torch_has_cuda", lambda: True)
    monkeypatch.setattr(preflight, "_num_cuda_devices", lambda: 2)

    assert checked(device="cuda:1") == ("torch on cuda:1", "float32", 0)


def test_an_engine_that_is_not_installed_is_named_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without importing anything."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)

    with pytest.raises(ConfigurationError, match=r"engine mlx: mlx and mlx_lm are not installed.*pip install"):
        checked(engine="mlx")


def test_weights_that_do_not_fit_are_refused_with_the_sum() -> None:
    """Of all nodes of the machine together."""
    needs = {"a": NodeNeeds("torch on cpu", "float32", 6 * 10**9), "b": NodeNeeds("mlx", "float32", 6 * 10**9)}

    with pytest.raises(
        ConfigurationError, match=r"weights of 6 GB \(a\) \+ 6 GB \(b\) = 12 GB do not fit into the 8 GB"
    ):
        check_main_memory(needs, Memory(16 * 10**9, 8 * 10**9))
    assert check_main_memory({"a": needs["a"]}, Memory(16 * 10**9, 8 * 10**9)) == "weights of 6 GB (a); 8 GB are free"


def test_no_framework_is_loaded_for_a_check() -> None:
    """It would take longer than all checks; whether torch has CUDA is read from a file of it."""
    program = """
import sys
from pathlib import Path
from baton.decode.settings import DecodeSettings
from baton.engine.checkpoint.model_folder import read_checkpoint
from baton.node import preflight
folder = Path(sys.argv[1])
for engine in ("torch", "mlx"):
    preflight.check_node(DecodeSettings(model_dir=folder, engine=engine), read_checkpoint(folder))
assert not {"torch", "mlx", "transformers"} & set(sys.modules)
has_cuda = preflight._torch_has_cuda()
import torch
assert has_cuda == bool(torch.version.cuda)
"""
    done = subprocess.run([sys.executable, "-c", program, str(Path(checkpoint_dir()))], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
