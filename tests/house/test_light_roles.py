"""Each extra alone, and the base installation, bring all packages that the roles they are for import.

`tests/system/test_extras.py` shows the same in environments of their own, and takes minutes.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from house.extras import brought_by, modules_beyond

_IMPORT_WITHOUT = """
import importlib, json, sys

absent, modules = map(json.loads, sys.argv[1:])

class Without:
    def __init__(self, finder):
        self._finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in absent else self._finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self._finder, name)

sys.meta_path[:] = map(Without, sys.meta_path)
for module in modules:
    importlib.import_module(module)
"""

_MODULES = {
    ("", "router"): ("router.settings", "router.server"),
    ("", "cache-index"): ("cache_index.settings", "cache_index.server"),
    ("", "agent"): ("agent.settings", "agent.server"),
    ("", "command line"): ("cli.main",),
    ("gateway", "gateway"): ("gateway.settings", "gateway.server", "text.tokenizer"),
    ("worker", "prefill"): ("prefill.settings", "worker.process", "engine.runners.mock"),
    ("worker", "decode"): ("decode.settings", "worker.process", "engine.runners.mock"),
    ("torch", "decode"): ("decode.settings", "worker.process", "engine.runners.torch.loader"),
    ("mlx", "decode"): ("decode.settings", "worker.process", "engine.runners.mlx.loader"),
    ("agent", "joining"): ("agent.joining", "router.join_verification", "discovery.lan", "security.join_token"),
    ("", "node addresses"): ("discovery.kubernetes_api", "discovery.kubernetes_node"),
}
"""Modules of `baton` by the extra that suffices for them, and what they are."""


@pytest.mark.parametrize(("extra", "what"), _MODULES, ids=lambda word: str(word or "base").replace(" ", "_"))
def test_an_extra_alone_brings_what_its_roles_import(extra: str, what: str) -> None:
    """All packages that this environment has beyond `baton-serve[extra]` and its dependencies are hidden."""
    modules = [f"baton.{module}" for module in _MODULES[extra, what]]
    absent = sorted(modules_beyond(brought_by(extra)))
    assert {"pytest", "hypothesis"} <= set(absent)

    command = [sys.executable, "-c", _IMPORT_WITHOUT, json.dumps(absent), json.dumps(modules)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("extra", ["", "gateway", "worker", "agent", "bench"])
def test_no_other_extra_brings_a_framework(extra: str) -> None:
    """A gateway's image has neither torch nor MLX, a node with MLX no torch, and one with torch no MLX."""
    assert not brought_by(extra) & {"torch", "mlx", "mlx-lm", "numba"}
    assert "mlx" not in brought_by("torch")
    assert "torch" not in brought_by("mlx")
