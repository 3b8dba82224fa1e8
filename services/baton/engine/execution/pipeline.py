"""Passes of the model: while the device is at one, the host processes the output of the one before.

A sequence whose output ends in the meantime is computed once more, and the token thrown away.
"""

from __future__ import annotations

from collections.abc import Callable

from baton.engine.events import PromptScored
from baton.engine.execution.health import PassHealth
from baton.engine.execution.passes import Pass, PassResult, TokenChoice, collect, launch, token_choice_of
from baton.engine.kv_cache.block_copy import swap_blocks
from baton.engine.kv_cache.offload import BlockSwaps
from baton.engine.request_registry import RequestRegistry
from baton.engine.runners.base import Runner
from baton.engine.scheduling.scheduler import Scheduler
from baton.engine.scheduling.step import Step

_REST_SHARE = 0.6
"""Part of the time for which the device was waited for that the host rests: a request that comes then joins the next
pass. The remainder is for planning, and for passes that take less than the one before.
"""

_LEAST_REST_SECONDS = 1e-3
"""Shorter rests cost more than they bring."""


class Pipeline:
    """Launches passes and processes what they bring.

    Invariant: between two calls at most one pass is under way, its last step not looked at, and all of its tokens are
    the runner's own choice.

    Args:
        runner: What computes.
        scheduler: What it is told to compute.
        living: Who gets it.

        clock: Seconds, monotonic.
        deliver: Called when there may be something to deliver, before the device is waited for.
        await_command: Waits for a command for some seconds, 0 or more; whether there is one.
        is_gap_wanted: Tells whether somebody waits for what happens between two launches while the device does nothing:
            then passes go one by one, and none is launched before the one before is over.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        living: RequestRegistry,
        clock: Callable[[], float],
        *,
        deliver: Callable[[], None],
        await_command: Callable[[float], bool],
        is_gap_wanted: Callable[[], bool] = lambda: False,
    ) -> None:
        self.num_steps = 0
        self.pass_seconds = 0.0  # of the last one
        self._runner = runner
        self._scheduler = scheduler
        self._living = living
        self._clock = clock
        self._deliver = deliver
        self._await_command = await_command
        self._is_gap_wanted = is_gap_wanted

        self._health = PassHealth(runner, scheduler.pool)
        self._underway: Pass | None = None
        self._free_since = 0.0
        self._idle_seconds = 0.0  # for which the host waited for the last pass, resting included
        self._rested_seconds = 0.0

    @property
    def is_underway(self) -> bool:
        """Return whether the device is at a pass."""
        return self._underway is not None

    @property
    def rest_seconds(self) -> float:
        """Return for how long the next pass need not be planned: the device is at one that lasts, by the last one."""
        underway = self._underway
        if underway is None or not underway.step.is_decode:
            return 0.0
        return self._rest_left()

    def note_rest(self, seconds: float) -> None:
        """Note that the host has rested."""
        self._rested_seconds += seconds

    def run(self, step: Step) -> bool:
        """Launch what the scheduler planned, and process what was under way before.

        Returns:
            Whether there was anything: if not, only a command can change what the scheduler plans next.
        """
        launched = self._launch(step)
        before, self._underway = self._underway, launched
        if before is not None:
            self._settle(before, before.step.num_passes - 1)
            self._deliver()
        self._settle_early()
        runs_ahead = self._runner.runs_ahead and not self._is_gap_wanted()
        if self._underway is not None and not (runs_ahead and self._underway.is_plain):
            launched, self._underway = self._underway, None
            self._settle(launched, launched.step.num_passes - 1)
        return launched is not None or before is not None or bool(step.members)

    def _settle_early(self) -> None:
        """Process all but the last of several passes in a row, as they come; fewer if somebody waits for the end."""
        index = 0
        while (launched := self._underway) is not None and index < launched.step.num_passes - 1:
            if self._rest():
                self._scheduler.progress.shorten(launched.step, launched.launched.cut(index + 1))
            if index == launched.step.num_passes - 1:
                break
            self._settle(launched, index)
            self._deliver()
            index += 1

    def _rest(self) -> bool:
        """Let the device work; return whether somebody waits for the end of what is under way."""
        began = self._clock()
        is_awaited = self._await_command(self._rest_left())
        self.note_rest(self._clock() - began)
        return is_awaited

    def _rest_left(self) -> float:
        seconds = self._free_since + _REST_SHARE * self._idle_seconds - self._clock()
        return seconds if seconds > _LEAST_REST_SECONDS else 0.0

    def _launch(self, step: Step) -> Pass | None:
        if not step.members and not step.swaps.outs:
            return None
        choice = token_choice_of(step)
        if self._may_lengthen(step) and choice is not TokenChoice.ON_HOST:
            self._scheduler.progress.lengthen(step, self._runner.max_launch_steps)
            step.swaps.outs += self._scheduler.swap_outs()
        try:
            if step.swaps.outs or step.swaps.ins:
                self._swap_blocks(step.swaps)
            if self._underway is None:
                self._free_since = self._clock()
            launched = launch(self._runner, step, choice, self._underway)
        except Exception as error:  # the edge of the pass's work
            self._fail(step, error)
            return None
        self._scheduler.progress.begin(step)
        return launched

    def _swap_blocks(self, swaps: BlockSwaps) -> None:
        started, offload = self._clock(), self._scheduler.offload
        num_blocks = swap_blocks(self._runner, swaps, offload.store)
        offload.note_copied(num_blocks, self._clock() - started)
        offload.write_through(swaps.outs)

    def _may_lengthen(self, step: Step) -> bool:
        if self._is_gap_wanted():
            return False
        is_alone = not self._scheduler.waiting and not self._scheduler.receiving and not self._await_command(0.0)
        is_plain = step.is_decode and not step.has_adapters
        return self._runner.max_launch_steps > 1 and is_plain and bool(step.spans) and is_alone

    def _settle(self, launched: Pass, index: int) -> None:
        """Wait for a step of what was launched, and process what it brings."""
        began = self._clock()
        try:
            result = collect(launched, index)
        except Exception as error:  # the edge of the pass's work
            behind, self._underway = self._underway, None
            self._fail(launched.step, error)
            if behind is not None and behind is not launched:
                self._scheduler.undo(behind.step)
            return
        now = self._clock()
        self.pass_seconds = now - self._free_since
        self._scheduler.note_pass(launched.step, self.pass_seconds)
        self._free_since = now
        waited = now - began
        # A pass that was over before the host looked says nothing of how long the next may be left alone.
        is_lasting = launched.step.is_decode and waited > _LEAST_REST_SECONDS / 10
        self._idle_seconds = waited + self._rested_seconds if is_lasting else 0.0
        self._rested_seconds = 0.0
        self._health.note(result.outcomes)
        self.num_steps += 1
        self._enter(result)

    def _enter(self, result: PassResult) -> None:
        living, sequences = self._living, result.sequences
        for sequence, error in result.failures:
            living.fail(sequence, error)
        self._scheduler.progress.enter(sequences, result.token_ids)
        for scored, scores in result.scores:
            living.tell(scored.sequence, PromptScored(scored.position + 1, tuple(scores)))
        if result.tokens is None:
            ending = living.tokens(sequences, result.token_ids)
        else:
            ending = sequences
            for sequence, token in zip(sequences, result.tokens, strict=True):
                living.token(sequence, token)
        for sequence in ending:
            living.end_if_complete(sequence)

    def _fail(self, step: Step, error: Exception) -> None:
        """Fail the requests of a pass, and take back what it gave to the prefix cache."""
        with self._living.failing(*step.members):
            raise error
        self._scheduler.undo(step)
        self._health.note(None)
