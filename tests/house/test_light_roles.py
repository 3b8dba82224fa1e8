"""The services that run no model import no framework, and the small ones nothing beyond the base installation."""

from __future__ import annotations

import subprocess
import sys

import pytest

_FRAMEWORKS = ("torch", "mlx", "mlx_lm", "safetensors")
_EXTRAS = (*_FRAMEWORKS, "numpy", "transformers", "tokenizers", "crc32c", "httptools", "msgspec", "jinja2", "uvloop")

_IMPORT_WITHOUT = """
import importlib, sys

role, *absent = sys.argv[1:]

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"{name} is not part of this installation", name=name)

sys.meta_path.insert(0, Absent())
importlib.import_module(f"baton.{role}.settings")
importlib.import_module("baton.worker.process" if role in ("prefill", "decode") else f"baton.{role}.server")
"""


@pytest.mark.parametrize("role", ["router", "cache_index", "agent"])
def test_small_roles_need_the_base_installation_only(role: str) -> None:
    """`pip install baton` without extras runs them."""
    _import_without(role, (*_EXTRAS, "cryptography", "zeroconf", "psutil"))


def test_the_gateway_needs_no_framework() -> None:
    """`pip install baton[gateway]` brings tokenizers, but neither torch nor MLX."""
    _import_without("gateway", _FRAMEWORKS)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_workers_import_their_framework_only_when_they_load_a_model(role: str) -> None:
    """A node with MLX has no torch, and one with torch no MLX."""
    _import_without(role, _FRAMEWORKS)


def _import_without(role: str, absent: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT_WITHOUT, role, *absent], capture_output=True, text=True, timeout=300
    )

    assert done.returncode == 0, done.stderr
