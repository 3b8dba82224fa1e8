"""Passes of the model: launched as planned, and while the device is at one, the host processes the one before.

A sequence whose output ends in the meantime is computed once more, and the token thrown away. A runner chooses the
tokens of a pass by itself where it can; else they are sampled from its logits here.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from baton.engine.events import Failed, Isolated, PromptScored
from baton.engine.execution.health import PassHealth, PassTimer
from baton.engine.execution.passes import Pass, PassResult, TokenChoice, collect, launch, token_choice_of
from baton.engine.kv_cache.block_copy import swap_blocks
from baton.engine.kv_cache.ingest import MoveRate, export_cached
from baton.engine.kv_cache.offload import BlockSwaps
from baton.engine.request_registry import RequestRegistry
from baton.engine.runners.base import Runner
from baton.engine.scheduling.scheduler import Scheduler
from baton.engine.scheduling.step import Step
from baton.engine.sequence import Phase, Sequence
from baton.errors import UnavailableError

log = logging.getLogger(__name__)

_REST_SHARE = 0.8
"""Part of the time for which the device was waited for that the host rests: a request that comes then joins the next
pass. The remainder is for passes that take less than the one before; planning has its own time, if that is more."""
_AWAITED_SHARE = 0.95
"""Part of a pass for which commands are taken while the next one is at the device: it may take less than expected."""
_PLANNING_KEPT = 0.9
"""Part of what planning took that counts the next time, where it took less since."""
_TELL_SECONDS = 0.5
"""For a gateway that takes nothing to be told that a request is computed alone."""
_LEAST_REST_SECONDS = 1e-3
"""Shorter rests cost more than they bring."""


class Pipeline:
    """Launches passes and processes what they bring.

    Invariant: between two calls at most one pass is in flight, its last steps not looked at, as many as planning takes
    time for, and all of its tokens are the runner's own choice. `deliver` is called when there may be something to
    deliver, before the device is waited for; `await_command` waits so many seconds for a command; `take_commands`
    executes those that come while a function gives seconds, and returns for how long there was none. Where
    `is_gap_wanted`, no pass is launched before the one before it is over.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        registry: RequestRegistry,
        clock: Callable[[], float],
        *,
        deliver: Callable[[], None],
        await_command: Callable[[float], bool],
        take_commands: Callable[[Callable[[], float]], float] = lambda _seconds: 0.0,
        is_gap_wanted: Callable[[], bool] = lambda: False,
    ) -> None:
        self.num_steps, self.pass_seconds = 0, 0.0  # of the last one
        self.reading = MoveRate()  # of handing out cached KV
        self._runner, self._scheduler = runner, scheduler
        self._registry, self._clock, self._is_gap_wanted = registry, clock, is_gap_wanted
        self._deliver, self._await_command, self._take_commands = deliver, await_command, take_commands
        self._health = PassHealth(runner, scheduler.pool)
        self.timer = PassTimer(scheduler.longest_seconds, clock)
        self._in_flight: Pass | None = None
        self._awaited: Pass | None = None  # at the device, and another one may be behind it
        self._free_since = self._rested_seconds = 0.0
        self._busy_seconds = math.inf  # for which the host neither waited for the last pass nor rested; inf: none yet
        self._step_seconds = 0.0  # of the last pass, where that was a step
        self._was_over = False  # the last pass, before the host looked
        self._planned_seconds = self._planning_seconds = 0.0  # of this pass, and as it is reckoned with
        self._settling_seconds = 0.0  # of one of several steps, from its end to its tokens' way out
        self._lane = ThreadPoolExecutor(1, "block-copies")

    def close(self) -> None:
        """Wait until what has been copied out is there."""
        self._lane.shutdown()

    @property
    def is_in_flight(self) -> bool:
        """Return whether the device is at a pass."""
        return self._in_flight is not None

    @property
    def _all_in_flight(self) -> list[Pass]:
        """Return the pass that the device is at, and what is behind it."""
        behind = self._in_flight if self._in_flight is not self._awaited else None
        return [each for each in (self._awaited, behind) if each is not None]

    @property
    def seconds_left(self) -> float:
        """Return how long what is in flight still takes, by the last pass; 0: nothing is."""
        left_seconds, num_passes = self._free_since + self.pass_seconds - self._clock(), len(self._all_in_flight)
        return max(0.0, left_seconds) + (num_passes - 1) * self.pass_seconds if num_passes else 0.0

    def prompts_in_flight(self) -> Mapping[Sequence, int]:
        """Return the positions of prompts that the device has still to compute of what is in flight."""
        positions = Counter[Sequence]()
        for index, (step, *_) in enumerate(self._all_in_flight):
            seconds = self._scheduler.expected_seconds(step) or self.pass_seconds if step.num_prompts else 0.0
            passed_seconds = 0.0 if index else self._clock() - self._free_since
            share = min(1.0, max(0.0, seconds - passed_seconds) / seconds) if seconds else 0.0
            for sequence, span in zip(step.sequences, step.spans, strict=True):
                if len(span.token_ids) > 1:
                    positions[sequence] += math.ceil(share * len(span.token_ids))
        return positions

    @property
    def rest_seconds(self) -> float:
        """Return for how long the next pass need not be planned: the device is at one that lasts.

        Steps last as the one before did, prompts, and a step after them, by their work; less what the host was busy
        for at the last. What is known to be over lasts no longer.
        """
        if (launched := self._in_flight) is None or self._is_over(launched):
            return 0.0
        return self._rest_seconds(launched.step, launched.step.num_left)

    def _rest_seconds(self, step: Step, num_passes: int) -> float:
        """Return for how long so many passes of the step in flight may be left alone."""
        expected = self._expected_seconds(step)
        last = min(_REST_SHARE * (expected - self._busy_seconds), expected - self._planning_seconds)
        seconds = self._free_since + (num_passes - 1) * expected + last - self._clock()
        return seconds if seconds > _LEAST_REST_SECONDS else 0.0

    def _expected_seconds(self, step: Step) -> float:
        """Return what a pass takes at least; 0: not known."""
        if step.is_decode and self._step_seconds and not self._was_over:
            return self._step_seconds
        return self._scheduler.expected_seconds(step, at_least=True)

    def note_rest(self, seconds: float) -> None:
        """Note that the host has rested."""
        self._rested_seconds += seconds

    def note_planning(self, seconds: float) -> None:
        """Note what it took to plan the next pass."""
        self._planned_seconds = seconds

    def run(self, step: Step) -> bool:
        """Launch what the scheduler planned, and process the pass that was in flight.

        Returns whether there was anything: if not, only a command can change what the scheduler plans next.
        """
        suspect = step.sequences[0] if step.is_alone and step.sequences else None
        if suspect is not None:
            self._tell_alone(suspect, is_alone=True)
        launched = self._launch(step)
        before, self._in_flight = self._in_flight, launched
        if before is not None:
            self._settle_all(before)
        self._settle_early()
        runs_ahead = self._runner.runs_ahead and not self._is_gap_wanted()
        if self._in_flight is not None and not (runs_ahead and self._in_flight.is_plain):
            launched, self._in_flight = self._in_flight, None
            self._settle_all(launched)
        if suspect is not None:
            self._tell_alone(suspect, is_alone=False)
        return launched is not None or before is not None or bool(step.members)

    def _tell_alone(self, sequence: Sequence, *, is_alone: bool) -> None:
        """Have it known whose the next pass is, should it end the process; nobody waits for who suspects nobody."""
        if sequence.request.is_suspect and sequence.phase is not Phase.FINISHED:
            told = threading.Event()
            self._registry.tell(sequence, Isolated(is_alone, told.set))
            self._deliver()
            told.wait(_TELL_SECONDS)

    def copy_out(self) -> None:
        """Copy out, behind the pass in flight, what blocks held that sequences have got meanwhile."""
        if outs := self._scheduler.take_uncopied():
            self._swap_blocks(BlockSwaps(outs))

    def _settle_early(self) -> None:
        """Process several passes in a row as they come, but for the last; fewer if a command waits for the end.

        Nor those that are at the device while the next launch is planned: it would have nothing to do then.
        """
        while (launched := self._in_flight) is not None and (num_left := launched.step.num_left) > 1:
            spare_seconds = (num_left - 1) * self._step_seconds - self._settling_seconds
            if self._step_seconds and self._planning_seconds > spare_seconds:
                break
            began = self._clock()
            is_awaited = self._await_command(self._rest_seconds(launched.step, 1))
            is_awaited = is_awaited or bool(self._scheduler.waiting) or self._is_gap_wanted()
            self.note_rest(self._clock() - began)
            if is_awaited and launched.launched is not None:
                num_kept = launched.launched.cut(launched.step.num_collected + 1)
                self._scheduler.progress.shorten(launched.step, num_kept)
            if launched.step.num_left == 1:
                break
            self._settle(launched)
            self._deliver()
            self._settling_seconds = self._clock() - self._free_since

    def _settle_all(self, launched: Pass) -> None:
        """Process what has not been of a pass, or of several in a row, unless one fails."""
        while launched.step.num_left and self._settle(launched):
            self._deliver()

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
            self._hand_out_cached(step)
            if self._in_flight is None:
                self._free_since = self._clock()
                self.timer.begin(step, self._free_since)
            if self._scheduler.states:
                step.spans = self._scheduler.states.placed(step.sequences, step.spans)
            launched = self._timed_launch(step, choice)
        except Exception as error:  # the edge of the pass's work
            self._scheduler.progress.begin(step)  # as one that fails on the device
            before, self._in_flight = self._in_flight, None
            if before is not None:
                self._settle_all(before)
            self._fail(step, error)
            return None
        self._scheduler.progress.begin(step)
        return launched

    def _timed_launch(self, step: Step, choice: TokenChoice) -> Pass:
        """Launch a pass, and note how long before the end of another it had to be begun: until the device has work."""
        began = self._clock()
        launched = launch(self._runner, step, choice, self._in_flight)
        # The first of several steps has all that is sent for them, too; a prompt's operations come one by one.
        share = min(1.0, 2 / step.num_passes) if step.is_decode else 0.0
        taken = self._planned_seconds + share * (self._clock() - began)
        most = 2 * self._planning_seconds + self.pass_seconds  # a pause says nothing of the next time
        self._planning_seconds = max(min(taken, most), _PLANNING_KEPT * self._planning_seconds)
        return launched

    def _hand_out_cached(self, step: Step) -> None:
        """Hand out the cached KV of the sequences that join. No pass is charged for it: it is nobody's computation."""
        started, is_idle = self._clock(), self._in_flight is None
        num_bytes = sum(export_cached(self._runner, sequence) for sequence in step.admitted)
        if num_bytes and is_idle:  # else it waited for the pass in flight
            self.reading.note(num_bytes, self._clock() - started)

    def _swap_blocks(self, swaps: BlockSwaps) -> None:
        swap_blocks(self._runner, swaps, self._scheduler.offload, self._lane, self._clock)

    def _may_lengthen(self, step: Step) -> bool:
        is_waited_for = self._scheduler.waiting or self._scheduler.receiving or self._is_gap_wanted()
        is_alone = not is_waited_for and not self._await_command(0.0)
        is_plain = step.is_decode and not step.has_adapters
        return self._runner.max_launch_steps > 1 and is_plain and bool(step.spans) and is_alone

    def _settle(self, launched: Pass) -> bool:
        """Wait for the next step of what was launched, and process what it brings; return whether it is sound."""
        self.timer.begin(launched.step, self._free_since)
        self._awaited = launched
        self.note_rest(self._take_commands(self._awaited_seconds))
        self._awaited = None
        began = self._clock()
        try:
            result = collect(launched)
        except Exception as error:  # the edge of the pass's work
            behind, self._in_flight = self._in_flight, None
            self._fail(launched.step, error)
            if behind is not None and behind is not launched:
                self._scheduler.undo(behind.step)
            return False
        self.timer.end()
        now = self._clock()
        self.pass_seconds = now - self._free_since
        # A pass that was over before the host looked may have taken less by any part.
        self._was_over = (waited := now - began) <= _LEAST_REST_SECONDS / 10
        is_late = self._was_over and math.isinf(self._runner.look_seconds)
        self._scheduler.note_pass(launched.step, self.pass_seconds, is_late=is_late)
        self._free_since = now
        self._busy_seconds = self.pass_seconds - waited - self._rested_seconds
        self._step_seconds = self.pass_seconds if launched.step.is_decode else 0.0
        self._rested_seconds = 0.0
        if result.failures or self._health.num_failed:
            self._note_health([*result.token_ids, *(error for _, error in result.failures)])
        self.num_steps += 1
        self._enter(result)
        return True

    def _awaited_seconds(self) -> float:
        """Return for how long commands may be executed beside two passes; 0: a copy is due, which may wait for both."""
        at_device, *behind = self._all_in_flight
        if not behind or self._is_over(at_device) or self._scheduler.uncopied:
            return 0.0
        seconds = self._free_since + _AWAITED_SHARE * self._expected_seconds(at_device.step) - self._clock()
        return seconds if seconds > _LEAST_REST_SECONDS else 0.0

    def _is_over(self, launched: Pass) -> bool:
        return launched.launched is not None and self._runner.is_over(launched.launched)

    def _enter(self, result: PassResult) -> None:
        registry, sequences = self._registry, result.sequences
        registry.num_tokens += len(sequences)
        for sequence, error in result.failures:
            registry.fail(sequence, error)
        self._scheduler.progress.enter(sequences, result.token_ids)
        for scored, scores in result.scores:
            registry.tell(scored.sequence, PromptScored(scored.position + 1, tuple(scores)))
        if result.tokens is None:
            ending = registry.tokens(sequences, result.token_ids)
        else:
            ending = sequences
            for sequence, token in zip(sequences, result.tokens, strict=True):
                registry.token(sequence, token)
        for sequence in ending:
            registry.end_if_complete(sequence)

    def _fail(self, step: Step, error: Exception) -> None:
        """Take back a pass; fail the request that had it for itself, of several have each computed alone.

        What was restored for it may be why: that is forgotten, and computed when it is tried again. Who only receives
        has told others how much it had: it has to be asked for again.
        """
        self.timer.end()
        for sequence in [each for each in step.members if each.phase is Phase.RECEIVING]:
            lost = UnavailableError(f"a pass that restored a prefix has failed: {error}", reason="RESTORATION")
            self._registry.end(sequence, Failed(lost))
        members = [each for each in step.members if each.phase is not Phase.FINISHED]
        for swap in step.swaps.ins:
            end = swap.first_block + len(swap.contents)
            self._scheduler.offload.forget(swap.sequence.hashes[swap.first_block : end])
        if len(members) > 1 or step.swaps.ins:
            log.warning("pass_failed count=%d cause=%r: each is computed alone", len(members), error)
            self._scheduler.isolate(step)
        else:
            with self._registry.failing(*members):
                raise error
            self._scheduler.undo(step)
        self._note_health(None)

    def _note_health(self, outcomes: list[object] | None) -> None:
        """Enter what a pass gave. Who examines the device may take a block that is yet to be copied out: none is."""
        self._scheduler.take_uncopied()
        self._health.note(outcomes)
