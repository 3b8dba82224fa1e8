"""An engine that is short of blocks, with and without host memory to move them to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from threading import Event

import pytest

from baton.capacity.hardware import PRESETS
from baton.engine.events import Ended, Failed, LandingLoad
from baton.engine.request import Purpose
from baton.engine.runners.base import BlockCopies, LayerKv
from baton.engine.runners.mock import MockRunner
from baton.errors import UnavailableError
from baton.kv.hashing import BlockHash, block_hashes, root_hash
from baton.node.cluster.registration import load_message
from engine.rig import (
    GREEDY,
    INFO,
    TIMEOUT_SECONDS,
    Listening,
    Rig,
    WaitingMockRunner,
    expected_tokens,
    mock_runner,
    prompt_of,
    request_of,
)

LONG = replace(GREEDY, max_tokens=40)
HOST_BYTES = 2**20


class SpendthriftRunner(MockRunner):
    """Counts how often it is to give memory back."""

    num_released = 0

    def release_spare_memory(self) -> None:
        """Count."""
        self.num_released += 1


class UnwritableRunner(WaitingMockRunner):
    """Takes no K and V in."""

    num_refused = 0

    def write_kv(self, block_table: Sequence[int], layer: int, start: int, num_tokens: int, kv: LayerKv) -> None:
        """Fail."""
        self.num_refused += 1
        raise RuntimeError("no such block")


def _start(rig: Rig, num_requests: int) -> list[Listening]:
    requests = [request_of(prompt_of(20, seed), f"r{seed}", LONG) for seed in range(num_requests)]
    return rig.submit_together(requests)


@pytest.mark.parametrize("host_bytes", [0, 3 * 4 * INFO.layout.num_token_bytes(), HOST_BYTES])
def test_preempted_requests_say_what_they_would_have_said(host_bytes: int) -> None:
    """Whether all, some or none of their blocks come back from host memory."""
    with Rig(mock_runner(num_blocks=30), host_bytes=host_bytes) as rig:
        listenings = _start(rig, 6)
        results = [listening.result() for listening in listenings]
        store = rig.engine.scheduler.offload.store

        assert results == [expected_tokens(prompt_of(20, seed), 40) for seed in range(6)]
        assert sum(_ended(listening).num_preemptions for listening in listenings) > 0
        assert (store.num_blocks > 0) == (host_bytes > 0)
        assert store.num_blocks <= store.max_blocks


def test_requests_wait_while_memory_is_short_and_all_are_answered() -> None:
    """One after the other, and those that are left together once there is memory again; what is kept is given back."""
    runner = mock_runner(kind=SpendthriftRunner)
    with Rig(runner) as rig:
        rig.engine.spare_memory(True)
        listenings = _start(rig, 3)
        first = listenings[0].result()
        assert rig.do(lambda: len(rig.engine.scheduler.running)) in (0, 1)
        rig.engine.spare_memory(False)

        assert [first, *(listening.result() for listening in listenings[1:])] == [
            expected_tokens(prompt_of(20, seed), 40) for seed in range(3)
        ]
    assert isinstance(runner, SpendthriftRunner)
    assert runner.num_released == 1


def test_the_load_says_whether_memory_is_short() -> None:
    """For whoever sends requests here expects them to run beside others."""
    said = []
    with Rig(mock_runner()) as rig:
        for is_short in (False, True, False):
            rig.engine.spare_memory(is_short)
            load = rig.do(lambda: rig.engine._registry.load(0, LandingLoad()))
            message = load_message(load, is_draining=False, accepted_placement_ids=[], system=None)
            said.append((load.is_sparing_memory, message.is_sparing_memory))

    assert said == [(False, False), (True, True), (False, False)]


def test_a_prompt_that_has_left_the_device_comes_back_from_host_memory() -> None:
    """Whoever asks: every byte, for the next token depends on each; and it counts as cached."""
    prompts = [prompt_of(40, seed) for seed in range(4)]
    with Rig(mock_runner(num_blocks=16), host_bytes=HOST_BYTES) as rig:
        for seed, prompt in enumerate(prompts):
            rig.generate(request_of(prompt, f"first{seed}"))
        assert rig.do(lambda: len(rig.engine.scheduler.pool.match(_hashes(prompts[0])))) == 0

        for seed, prompt in enumerate(prompts):
            listening = rig.submit(request_of(prompt, f"second{seed}"))
            assert listening.result() == expected_tokens(prompt, 8)
            assert _ended(listening).prompt_work.num_cached_tokens == 36


class LateCopiesRunner(MockRunner):
    """Has blocks that leave the device when it is told to; or never, if there is an error."""

    error: Exception | None = None
    has_come: Event

    def begin_copies(self, block_ids: Sequence[int]) -> BlockCopies:
        """Begin as a mock does."""
        copies, error, has_come = super().begin_copies(block_ids), self.error, self.has_come

        def wait() -> None:
            assert has_come.wait(TIMEOUT_SECONDS)
            if error:
                raise error

        copies.wait = wait
        return copies


@pytest.mark.parametrize("error", [None, RuntimeError("device lost")], ids=["late", "failing"])
def test_only_who_wants_what_has_left_the_device_waits_for_it(error: Exception | None) -> None:
    """Others go on; where it does not come, the prompt is computed again."""
    prompts, runner = [prompt_of(40, seed) for seed in range(4)], mock_runner(num_blocks=16, kind=LateCopiesRunner)
    assert isinstance(runner, LateCopiesRunner)
    runner.error, runner.has_come = error, Event()
    with Rig(runner, host_bytes=HOST_BYTES) as rig:
        for seed, prompt in enumerate(prompts):
            assert rig.generate(request_of(prompt, f"first{seed}")) == expected_tokens(prompt, 8)
        assert rig.do(lambda: rig.engine.scheduler.offload.store.num_blocks)

        listening = rig.submit(request_of(prompts[0], "again"))
        runner.has_come.set()
        assert listening.result() == expected_tokens(prompts[0], 8)
        ended = _ended(listening)
        # Where it has failed before it is looked for, it is not found any more.
        expected = {(36, 1), (0, 0)} if error else {(36, 0)}
        assert (ended.prompt_work.num_cached_tokens, ended.num_preemptions) in expected


def _hashes(prompt: Sequence[int]) -> list[BlockHash]:
    return block_hashes(root_hash(INFO.layout.model_revision_digest, 4), prompt, 4)


def test_a_request_whose_blocks_cannot_be_restored_computes_them() -> None:
    """Its pass fails, and what could not be copied is not tried again, for nobody."""
    runner = UnwritableRunner(
        INFO, PRESETS["h200"], num_blocks=30, block_tokens=4, clock=lambda: 1.0, sleep=lambda _seconds: None
    )
    with Rig(runner, host_bytes=HOST_BYTES) as rig:
        results = [listening.result() for listening in _start(rig, 6)]

        assert results == [expected_tokens(prompt_of(20, seed), 40) for seed in range(6)]
        assert runner.num_refused > 0
        assert rig.generate(request_of(prompt_of(9), "later")) == expected_tokens(prompt_of(9), 8)


def test_who_waits_behind_a_request_that_cannot_be_restored_is_answered() -> None:
    """No command comes behind the failure: the engine looks again by itself."""
    runner = UnwritableRunner(
        INFO, PRESETS["h200"], num_blocks=12, block_tokens=4, clock=lambda: 1.0, sleep=lambda _seconds: None
    )
    with Rig(runner, host_bytes=HOST_BYTES) as rig:
        for seed in (1, 2):  # the second overwrites what the first has left
            rig.generate(request_of(prompt_of(40, seed), f"r{seed}"))
        restored = request_of(prompt_of(40, 1), "restored", purpose=Purpose.RECEIVE, priority=-1)
        waiting = request_of(prompt_of(20, 3), "waiting")
        failing, listening = rig.do(lambda: (rig.submit(restored), rig.submit(waiting)))  # type: ignore[misc]

        error = failing.until(Failed).error
        assert isinstance(error, UnavailableError)
        assert "no such block" in error.message
        assert listening.result() == expected_tokens(prompt_of(20, 3), 8)


def test_who_receives_beside_a_pass_that_fails_is_not_left_with_blocks_that_nobody_filled() -> None:
    """It had told what it lacks: that it lacks more is no news that it can send."""
    runner = UnwritableRunner(
        INFO, PRESETS["h200"], num_blocks=24, block_tokens=4, clock=lambda: 1.0, sleep=lambda _seconds: None
    )
    with Rig(runner, host_bytes=HOST_BYTES) as rig:
        for seed in (1, 2, 3):
            rig.generate(request_of(prompt_of(40, seed), f"r{seed}"))
        receiving = request_of(prompt_of(40, 1), "receiving", purpose=Purpose.RECEIVE, priority=-1)
        beside = request_of(prompt_of(20, 4), "beside")
        failing, listening = rig.do(lambda: (rig.submit(receiving), rig.submit(beside)))  # type: ignore[misc]

        assert isinstance(failing.until(Failed).error, UnavailableError)
        assert listening.result() == expected_tokens(prompt_of(20, 4), 8)
        assert runner.num_refused == 1


def _ended(listening: Listening) -> Ended:
    end = listening.seen[-1]
    assert isinstance(end, Ended)
    return end


@pytest.mark.parametrize("seed", range(4))
def test_random_requests_short_of_blocks_say_their_own_while_passes_run_ahead(seed: int) -> None:
    """Priorities, equal prompts, aborts between any two passes; afterwards every block is free."""
    random = Random(seed)
    runner = mock_runner(num_blocks=random.choice([16, 24]))
    with Rig(runner, max_step_tokens=random.choice([7, 40]), host_bytes=random.choice([0, HOST_BYTES])) as rig:
        requests = [
            request_of(
                prompt_of(random.choice([20, random.randint(1, 24)]), random.randint(1, 3)),
                f"r{index}",
                replace(GREEDY, max_tokens=random.choice([1, 12, 40]), ignore_eos=True),
                priority=random.choice([0, 0, 1, -5]),
            )
            for index in range(24)
        ]
        listenings = [rig.submit(request) for request in requests]
        aborted = random.sample(range(24), 4)
        for index in aborted:
            listenings[random.choice([each for each in range(24) if each not in aborted])].next()
            rig.engine.abort(requests[index])

        for index in range(24):
            if index not in aborted:
                prompt, params = requests[index].prompt_token_ids, requests[index].params
                assert listenings[index].result() == expected_tokens(prompt, params.max_tokens or 0)
