"""Requests with adapters in the engine: what they share, and what they never do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from baton.engine.events import Ended, Failed
from baton.engine.runners.base import Launched, Span
from baton.engine.runners.drawing import Draws
from baton.engine.runners.mock import MockRunner
from baton.errors import MismatchError
from baton.kv.block_file import cache_identity
from baton.kv.disk_store import DiskBlockStore
from baton.kv.hashing import Adapter
from engine.rig import INFO, LAYOUT, Rig, has_written, mock_runner, prompt_of, request_of

ADAPTED = replace(INFO, adapters=(Adapter("one", "1" * 32), Adapter("two", "2" * 32), Adapter("also-one", "1" * 32)))
PROMPT = prompt_of(25)
NUM_FULL_TOKENS = 24


class LaunchNotingRunner(MockRunner):
    """Notes the adapters and the number of steps of every launch."""

    max_launch_steps = 8

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.launches: list[tuple[set[str], int]] = []

    def launch(
        self,
        spans: Sequence[Span],
        *,
        draws: Draws | None = None,
        after: Launched | None = None,
        num_steps: int = 1,
    ) -> Launched:
        """Launch."""
        self.launches.append(({span.adapter for span in spans}, num_steps))
        return super().launch(spans, draws=draws, after=after, num_steps=num_steps)


def cached_tokens(rig: Rig, adapter: str, name: str) -> int:
    """Return how much of the prompt a request with an adapter finds cached."""
    listening = rig.submit(request_of(PROMPT, name, adapter=adapter))
    ended = listening.until(Ended, Failed)
    assert isinstance(ended, Ended)
    return ended.prompt_work.num_cached_tokens


def test_a_cached_prefix_serves_its_own_adapter_alone() -> None:
    """What counts is what the adapter computes, not what it is called."""
    with Rig(mock_runner(info=ADAPTED)) as rig:
        found = [
            cached_tokens(rig, adapter, f"r{number}")
            for number, adapter in enumerate(("", "one", "two", "", "one", "two", "also-one"))
        ]

    assert found == [0, 0, 0, *[NUM_FULL_TOKENS] * 4]


def test_equal_prompts_that_come_together_are_shared_by_adapter() -> None:
    """Two of each: one of both computes, whichever order they come in."""
    with Rig(mock_runner(info=ADAPTED), max_step_tokens=256) as rig:
        adapters = ("one", "", "one", "", "two")
        requests = [request_of(PROMPT, f"r{index}", adapter=each) for index, each in enumerate(adapters)]
        shared = []
        for listening in rig.submit_together(requests):
            ended = listening.until(Ended, Failed)
            assert isinstance(ended, Ended)
            shared.append(ended.prompt_work.num_shared_tokens > 0)

    assert shared == [False, False, True, True, False]


def test_tiers_keep_adapters_apart(tmp_path: Path) -> None:
    """A pool of one prompt: what comes back from host memory, and after a restart from disk, is the adapter's own."""
    hits = []
    for restart in range(2):
        disk = DiskBlockStore(tmp_path, 2**24, cache_identity(LAYOUT, 4))
        disk.start()
        with Rig(mock_runner(num_blocks=9, info=ADAPTED), host_bytes=2**20, disk=disk) as rig:
            for number, adapter in enumerate(("one", "two", "", "one")):
                rig.generate(request_of(PROMPT, f"r{restart}-{number}", adapter=adapter))
                assert has_written(rig.engine, disk)
        hits.append(rig.engine.scheduler.offload.hits)

    assert (hits[0].host, hits[0].disk) == (NUM_FULL_TOKENS, 0)
    assert hits[1].disk == 3 * NUM_FULL_TOKENS


def test_an_adapter_that_is_not_loaded_is_refused_by_its_name() -> None:
    """The message says what is."""
    with Rig(mock_runner(info=ADAPTED)) as rig:
        failed = rig.submit(request_of(PROMPT, adapter="three")).until(Failed)

    assert isinstance(failed, Failed)
    assert isinstance(failed.error, MismatchError)
    assert failed.error.reason == "MODEL_MISMATCH"
    assert failed.error.message == "adapter: this node has 'one, two, also-one', the peer has 'three'"


@pytest.mark.parametrize(("adapter", "steps"), [("", {1, 7}), ("one", {1})])
def test_requests_with_adapters_decode_step_by_step(adapter: str, steps: set[int]) -> None:
    """Several steps per launch are for passes without adapters; every span says which adapter it has."""
    runner: MockRunner = mock_runner(info=ADAPTED, kind=LaunchNotingRunner)
    assert isinstance(runner, LaunchNotingRunner)
    with Rig(runner) as rig:
        rig.generate(request_of(PROMPT, adapter=adapter))

    assert {num_steps for _, num_steps in runner.launches} == steps
    assert [adapters for adapters, _ in runner.launches] == [{adapter}] * len(runner.launches)
