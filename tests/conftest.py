"""Fixtures shared by all tests."""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from order import in_order, unit_of

os.environ["OMP_NUM_THREADS"] = "1"
"""One thread per test process, whatever the machine, and whichever test came before: before anything imports torch."""

settings.register_profile(
    "baton", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("baton")
"""What a property test finds depends on the code alone: neither on the machine's pace nor on chance.

`--hypothesis-profile=default` looks for what the fixed examples miss.
"""


def pytest_configure(config: pytest.Config) -> None:
    """Have workers take files in the order of `pytest_collection_modifyitems`, not by their numbers of tests."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Have a worker run all files that share a cluster: two workers with some of them each would start it twice."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith("tests/gpu/"):
                return nodeid  # kernels are compiled test by test
            return unit_of(config.rootpath / nodeid.partition("::")[0])

    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order files such that no worker of a test run is left with a long one at the end; see `order.py`."""
    items[:] = in_order(items)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the garbage collector what the imports of all tests leave, which stays to the end.

    A runner that is closed has it collect everything, hundreds of times in a run: that took half a second and more.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def same_draws() -> None:
    """Have what a test draws without a seed of its own not depend on the tests before it in its process."""
    random.seed(1)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(1)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(1)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Keep the garbage collector away."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def checkpoints() -> Mapping[str, Path]:
    """Return the folder of each tiny checkpoint by name; see `tests/checkpoints.py`."""
    from checkpoints import CHECKPOINT_NAMES, checkpoint

    return {name: checkpoint(name) for name in CHECKPOINT_NAMES}
