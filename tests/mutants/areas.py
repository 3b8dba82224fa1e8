"""Where mutants are drawn, and which tests are asked for them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from mutants.operators import Mutant, mutants_below


@dataclass(frozen=True)
class Area:
    """A part of Baton on whose rightness others rely."""

    modules: tuple[str, ...]
    """Folders and files, relative to the repository."""
    tests: tuple[str, ...]
    """Folders and files with the tests that may run them; which do is found out."""


_PACKAGE = "services/baton"
_ENGINE_TESTS = (
    "tests/engine/scheduling",
    "tests/engine/kv_cache",
    "tests/engine/execution",
    "tests/engine/test_engine.py",
    "tests/engine/test_engine_memory.py",
    "tests/engine/test_adapted_requests.py",
)
AREAS: Mapping[str, Area] = {
    "scheduler": Area(
        (f"{_PACKAGE}/engine/scheduling",),
        _ENGINE_TESTS,
    ),
    "pool": Area(
        (f"{_PACKAGE}/engine/kv_cache", f"{_PACKAGE}/kv/pool.py"),
        ("tests/kv/test_pool.py", *_ENGINE_TESTS),
    ),
    "KV stream": Area(
        (
            f"{_PACKAGE}/kv/stream.py",
            f"{_PACKAGE}/kv/kv_format.py",
            f"{_PACKAGE}/kv/numpy_codec.py",
            f"{_PACKAGE}/kv/hashing.py",
            f"{_PACKAGE}/decode/kv_stream",
            f"{_PACKAGE}/kv_transport",
        ),
        (
            "tests/kv",
            "tests/kv_transport",
            "tests/decode/kv_stream",
            "tests/decode/test_generation.py",
            "tests/decode/test_measurement.py",
            "tests/prefill",
            "tests/engine/kv_cache",
        ),
    ),
    "authorisation": Area(
        (f"{_PACKAGE}/security", f"{_PACKAGE}/gateway/access"),
        (
            "tests/security",
            "tests/gateway/access",
            "tests/rpc",
            "tests/gateway/http",
            "tests/gateway/api/test_refusals.py",
            "tests/gateway/api/test_overload.py",
            "tests/gateway/api/test_tolerance.py",
            "tests/decode/test_peers.py",
        ),
    ),
}


def drawn(root: Path, seed: int, number: int, areas: Mapping[str, Area] = AREAS) -> dict[Mutant, str]:
    """Return mutants of a repository with the area of each: as many of each area, any of its mutants as likely."""
    chosen: dict[Mutant, str] = {}
    for index, (name, area) in enumerate(areas.items()):
        of_area = mutants_below(root, area.modules)
        random.Random(f"{seed} {name}").shuffle(of_area)
        size = number // len(areas) + (index < number % len(areas))
        chosen |= dict.fromkeys(islice(filter(partial(_can_be_compiled, root), of_area), size), name)
    return chosen


def _can_be_compiled(root: Path, mutant: Mutant) -> bool:
    try:
        compile(mutant.applied_to((root / mutant.path).read_bytes()), mutant.path, "exec")
    except (SyntaxError, ValueError):
        return False
    return True
