"""The engine: one thread that owns a runner, a scheduler and every living sequence.

Services talk to it by commands, which any thread may give and which take effect while the host plans and processes
no pass; it answers by events, those of one pass delivered together.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from concurrent.futures import Future
from contextlib import suppress

from baton.engine.events import Admitted, EngineLoad, FrameLanded, Listener
from baton.engine.execution.pipeline import Pipeline
from baton.engine.kv_cache.block_copy import save_cached
from baton.engine.kv_cache.block_reads import BlockRead, BlockReads, HeldBlocks
from baton.engine.kv_cache.disk_tier import DiskTier
from baton.engine.kv_cache.ingest import GapBudget, Ingest
from baton.engine.kv_cache.receptions import Receptions
from baton.engine.request import EngineRequest, Purpose, check_request
from baton.engine.request_registry import Deliverable, RequestRegistry, queued_placements
from baton.engine.runners.base import LayerKv, Runner
from baton.engine.sampling import SampledToken
from baton.engine.scheduling.admission import SchedulerLimits
from baton.engine.scheduling.scheduler import Scheduler
from baton.engine.sequence import Sequence, new_sequence
from baton.errors import AttemptReusedError, BatonError, OverloadedError
from baton.kv.disk_store import DiskBlockStore
from baton.kv.hashing import BlockEvents, BlockHash
from baton.kv.pool import BlockPool
from baton.kv.stream import KvFrame

log = logging.getLogger(__name__)

_LOAD_INTERVAL_SECONDS = 0.05
CHECK_INTERVAL_SECONDS = 1.0
"""Shortest time between two proofs of the scheduler's state, each O(blocks)."""


class Engine:
    """Runs requests on a runner in a thread of its own.

    Args:
        runner: Weights and block memory; used by the engine's thread alone once started.
        limits: Bounds of a batch.
        post: Called from the engine's thread with the events of a pass, in order.
        on_block_events: Called with changes of the prefix cache, from the engine's thread; from the disk's of the disk.
        on_fatal: Called from the engine's thread when it dies of a bug; no event follows.
        on_queue_change: Called from the engine's thread when `load` shows another queue of prompts than before, fewer
            requests or a placed one more: with the placements whose requests it counts from now on.
        max_waiting: Requests waiting at most.
        disk: Where contents of blocks are kept that leave the device, besides host memory; closed with the engine.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        runner: Runner,
        limits: SchedulerLimits,
        *,
        post: Callable[[list[Deliverable]], None],
        on_block_events: Callable[[BlockEvents], None] = lambda _events: None,
        on_fatal: Callable[[BaseException], None] = lambda _error: None,
        on_queue_change: Callable[[Items[str]], None] = lambda _placement_ids: None,
        max_waiting: int = 1024,
        disk: DiskBlockStore | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.runner, self._disk = runner, disk
        self._disk_tier = (
            DiskTier(disk, runner.info.layout, runner.block_tokens, self.call) if disk is not None else None
        )
        self.scheduler = Scheduler(
            BlockPool(runner.num_blocks, runner.block_tokens),
            limits,
            block_bytes=runner.block_tokens * runner.info.layout.num_token_bytes(),
            disk=self._disk_tier,
            num_state_slots=runner.num_state_slots,
        )
        self._post, self._on_block_events = post, on_block_events
        self._on_fatal, self._on_queue_change = on_fatal, on_queue_change
        self._max_waiting, self._clock = max_waiting, clock
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._seen: deque[Callable[[], None] | None] = deque()  # commands that have been waited for
        self._registry = RequestRegistry(self.scheduler, clock)
        self._held = HeldBlocks(runner, self.scheduler.pool, self.scheduler.offload.store)
        self._reads = BlockReads(self._held, GapBudget(), clock)
        self._pipeline = Pipeline(
            runner,
            self.scheduler,
            self._registry,
            clock,
            deliver=self._deliver,
            await_command=self._await_command,
            take_commands=self._take_beside,
            is_gap_wanted=lambda: bool(self._reads.queue) or self.scheduler.has_suspects,
        )
        self._ingest = Ingest(
            runner,
            GapBudget(),
            clock,
            failing=self._registry.failing,
            on_landed=lambda sequence: self._registry.tell(sequence, FrameLanded()),
        )
        self._receptions = Receptions(runner, self.scheduler, self._registry, self._ingest, self._pipeline, clock)
        self._is_stepping = False
        self._is_proven = True  # that no block is lost or doubled
        self._checked_at = self._load_taken_at = 0.0
        self._accepted_placement_ids: list[str] = []  # that no load counts yet
        self._load = self._registry.load(0, self._ingest.landing)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        if self._disk is not None:
            self._disk.watch(self._on_block_events)
        self._thread.start()

    def close(self) -> None:
        """Stop after the current pass and free the runner. Living requests get no further event."""
        self._commands.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def submit(self, request: EngineRequest, listener: Listener) -> None:
        """Take a request; a refusal comes as `Failed`."""
        submitted = self._clock()
        self._commands.put(lambda: self._submit(request, listener, submitted))

    def abort(self, request: EngineRequest) -> None:
        """Drop a request and all it holds, without an event; one that has ended, or was refused, is ignored."""
        self._commands.put(lambda: self._abort(request))

    def write_kv(self, request_id: str, frame: KvFrame, *, is_rounded: bool = False) -> None:
        """Have a received frame written into the request's blocks when there is time; `FrameLanded` follows.

        `is_rounded`: the sender's cache has other numbers, and nothing of the request is cached.
        """
        self._commands.put(lambda: self._receptions.write_kv(request_id, frame, is_rounded=is_rounded))

    def take_first_token(self, request_id: str, token: SampledToken) -> None:
        """Deliver the token that another node sampled after the prompt, before its KV is complete."""
        self._commands.put(lambda: self._receptions.take_first_token(request_id, token))

    def commit_kv(self, request_id: str) -> None:
        """Declare the received KV complete and right: the request is decoded from the next pass on."""
        came_seconds = self._clock()
        self._commands.put(lambda: self._receptions.commit(request_id, came_seconds))

    def fall_back(self, request_id: str, num_received_tokens: int = 0) -> None:
        """Give up receiving: the request is computed here.

        `request_id`: the request's id. `num_received_tokens`: leading positions whose KV is here in every layer and
        right: positions after them, or after the cached prefix if that is longer, are computed.
        """
        self._commands.put(lambda: self._receptions.fall_back(request_id, num_received_tokens))

    def count_cached(self, hashes: Items[BlockHash]) -> Future[int]:
        """Return how many blocks, from the first on, are in the prefix cache, on the device or in host memory.

        Where layers keep states, which do not travel with blocks, none is of use to others.
        """
        answer: Future[int] = Future()

        def count() -> None:
            if answer.set_running_or_notify_cancel():
                answer.set_result(0 if self.scheduler.states else self._held.count(hashes))

        self.call(count)
        return answer

    def read_blocks(self, hashes: Items[BlockHash], layers: range) -> Future[list[LayerKv]]:
        """Return K and V of consecutive cached blocks, layer by layer, when there is time; they count as used then.

        The result fails with `NotFoundError` if one of them has left the prefix cache; cancelled, it is not read.
        """
        answer: Future[list[LayerKv]] = Future()
        self.call(lambda: self._reads.add(BlockRead(hashes, layers, answer)))
        return answer

    def spare_memory(self, is_short: bool) -> None:
        """While memory is short, compute one sequence at a time; each call gives back what is kept for reuse."""

        def spare() -> None:
            self.scheduler.admission.is_sparing = is_short
            if is_short:
                self.runner.release_spare_memory()

        self.call(spare)

    def call(self, function: Callable[[], None]) -> None:
        """Run a function in the engine's thread, as a command."""
        self._commands.put(function)

    def load(self) -> EngineLoad:
        """Return what the engine was doing a moment ago. Callable from any thread."""
        return self._load

    def load_age_seconds(self) -> float:
        """Return how long ago that was: it is looked at between passes. Callable from any thread."""
        return self._clock() - self._load_taken_at

    def is_pass_hung(self) -> bool:
        """Return whether the pass that is computed takes much longer than predicted. Callable from any thread."""
        return self._pipeline.timer.is_hung()

    def _run(self) -> None:
        try:
            while self._take_commands():
                self._exchange()
                began = self._clock()
                step = self.scheduler.schedule()
                self._announce(step.admitted)
                self._pipeline.note_planning(self._clock() - began)
                self._is_stepping = self._pipeline.run(step) or self._ingest.is_pending or bool(self._reads.queue)
                self._deliver()
            self._pipeline.close()
            self.scheduler.offload.write_through()
            if self._disk_tier is not None:
                save_cached(self.runner, self.scheduler.pool, self._disk_tier, self._clock)
        except BaseException as error:  # the edge of the thread: without it the process would live on, deaf
            log.exception("engine_died")
            self._on_fatal(error)
        finally:
            self._pipeline.close()
            self.runner.close()
            if self._disk is not None:
                self._disk.close()

    def _take_commands(self) -> bool:
        """Execute what has been asked, waiting for it if the last pass was empty. Returns False to stop."""
        must_wait, began = not self._is_stepping, self._clock()
        while True:
            rest_seconds = self._rest() if must_wait else self._pipeline.rest_seconds
            if rest_seconds and not must_wait and self._writes_beside(rest_seconds):
                continue
            try:
                look_seconds = None if rest_seconds is None else min(rest_seconds, self.runner.look_seconds)
                command = self._next_command(look_seconds)
            except queue.Empty:
                if must_wait or self._pipeline.rest_seconds:
                    continue
                self._pipeline.note_rest(self._clock() - began)
                return True
            if command is None:
                return False
            self._execute(command)
            must_wait, began = False, self._clock() if must_wait else began

    def _execute(self, command: Callable[[], None]) -> None:
        command()
        self._is_proven = False
        if self._pipeline.is_in_flight:  # those whose KV comes from elsewhere need nothing of it
            self._announce(self.scheduler.admit_receiving())
        if self._registry.has_news:  # a first token from elsewhere does not wait for the pass in flight
            self._deliver()

    def _writes_beside(self, seconds: float) -> bool:
        """Write KV that has arrived while the device is at a pass and nothing else is asked; return whether."""
        if self._seen or not self._commands.empty() or not self._ingest.write_beside(seconds):
            return False
        self._is_proven = False
        if self._registry.has_news:  # a frame that has landed makes room for the next one
            self._deliver()
        return True

    def _next_command(self, seconds: float | None) -> Callable[[], None] | None:
        """Return the next command; wait for it so many seconds, None: for ever. Raises queue.Empty if there is none."""
        if self._seen:
            return self._seen.popleft()
        return self._commands.get(block=seconds != 0.0, timeout=seconds)

    def _take_beside(self, left_seconds: Callable[[], float]) -> float:
        """Execute commands as long as there are seconds left; return for how long there was none."""
        idle_seconds = 0.0
        while seconds := left_seconds():
            began = self._clock()
            if not self._await_command(min(seconds, self.runner.look_seconds)):
                idle_seconds += self._clock() - began
            elif command := self._seen[0]:
                self._seen.popleft()
                self._execute(command)
            else:
                break
        return idle_seconds

    def _await_command(self, seconds: float) -> bool:
        """Wait for a command for some seconds; return whether there is one."""
        if not self._seen:
            with suppress(queue.Empty):
                self._seen.append(self._commands.get(block=seconds > 0, timeout=seconds or None))
        return bool(self._seen)

    def _announce(self, admitted: list[Sequence]) -> None:
        for sequence in admitted:
            if sequence.stats.started == 0.0:
                sequence.stats.started = self._clock()
                hashes = tuple(sequence.hashes) if sequence.purpose is Purpose.RECEIVE else ()
                self._registry.tell(sequence, Admitted(sequence.stats.num_cached, hashes))
        if admitted:
            self._deliver()

    def _deliver(self) -> None:
        for changes in (self.scheduler.pool.changes, self.scheduler.offload.store.changes):
            if changes:
                self._on_block_events(changes.drain())
        if self._accepted_placement_ids or self._clock() - self._load_taken_at >= _LOAD_INTERVAL_SECONDS:
            self._take_load()
        if deliveries := self._registry.drain():
            self._post(deliveries)

    def _take_load(self) -> None:
        self._load_taken_at = self._clock()
        num_steps, reading = self._pipeline.num_steps, self._pipeline.reading.bytes_per_second
        before, in_flight = self._load, self._pipeline.prompts_in_flight()
        self._load = self._registry.load(num_steps, self._ingest.landing, reading, in_flight)
        accepted, self._accepted_placement_ids = self._accepted_placement_ids, []
        is_less = self._load.num_running + self._load.num_waiting < before.num_running + before.num_waiting
        if accepted or is_less or queued_placements(before) != queued_placements(self._load):
            self._on_queue_change(accepted)

    def _submit(self, request: EngineRequest, listener: Listener, submitted: float) -> None:
        try:
            self._check(request)
            info = self.runner.info
            sequence = new_sequence(
                request,
                max_context_tokens=info.max_context_tokens,
                max_pool_tokens=self.runner.num_blocks * self.runner.block_tokens,
                eos_token_ids=info.eos_token_ids,
                model_revision_digest=info.layout_with(request.adapter).model_revision_digest,
                block_tokens=self.runner.block_tokens,
            )
            self.scheduler.add(sequence, submitted)
        except BatonError as error:
            self._registry.refuse(listener, error)
            return
        if request.placement_id:
            self._accepted_placement_ids.append(request.placement_id)
        sequence.stats.submitted = submitted
        self._registry.add(sequence, listener)
        if request.output_token_ids and request.purpose is not Purpose.PREFILL:
            self._registry.end_if_complete(sequence)  # the earlier attempt delivered all and could not say so any more

    def _check(self, request: EngineRequest) -> None:
        if self._registry.get(request.request_id) is not None:
            raise AttemptReusedError(f"request {request.request_id} is running already")
        if not self.scheduler.may_wait(request, self._max_waiting):
            raise OverloadedError(f"{self._max_waiting} requests are waiting already")
        check_request(request, self.runner.info)

    def _abort(self, request: EngineRequest) -> None:
        sequence = self._registry.get(request.request_id)
        if sequence is not None and sequence.request is request:
            self._ingest.drop(sequence)
            self._registry.drop(sequence)

    def _exchange(self) -> None:
        """Write KV that has arrived and read blocks for other nodes, no more than is gained by it."""
        if not (self._ingest.is_pending or self._reads.queue):
            return
        pass_seconds, num_running = self._pipeline.pass_seconds, len(self.scheduler.running)
        if self._reads.queue and not self._pipeline.is_in_flight:  # else a read would wait, and be taken for a slow one
            self._reads.run(pass_seconds, num_running)
        if self._ingest.is_pending:
            self._ingest.run(pass_seconds, num_running)
            self._is_proven = False

    def _rest(self) -> float | None:
        """Take stock before waiting: every state in which the engine comes to rest is proven, if not at once.

        Returns seconds after which to take stock again; None: nothing is left to prove. Raises AssertionError if a
        block is lost or doubled.
        """
        self._take_load()
        if self._is_proven:
            return None
        remaining = self._checked_at + CHECK_INTERVAL_SECONDS - self._clock()
        if remaining > 0:
            return remaining
        self.scheduler.check_integrity()
        self._checked_at, self._is_proven = self._clock(), True
        return None
