"""An engine on a mock runner in which no time passes, and what it ought to say."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

import numpy as np

from baton.capacity.hardware import PRESETS
from baton.engine.engine import Engine
from baton.engine.events import Ended, EngineEvent, Failed, TokenReady
from baton.engine.request import EngineRequest, SamplingParams
from baton.engine.request_registry import Deliverable, deliver
from baton.engine.runners.base import ModelInfo, Runner
from baton.engine.runners.mock import MockRunner
from baton.engine.runners.mock.state import next_tokens, states_of
from baton.engine.scheduling.admission import SchedulerLimits
from baton.kv.disk_store import DiskBlockStore
from baton.kv.hashing import BlockEvents, Tier
from baton.kv.kv_format import KvDtype, KvLayout, LayerSpec

TIMEOUT_SECONDS = 60.0
VOCABULARY_SIZE = 211
EOS = 7
LAYOUT = KvLayout(
    "mock",
    "a" * 32,
    "b" * 32,
    (LayerSpec(2, 4, 8), LayerSpec(2, 4, 8), LayerSpec(1, 8, 4)),
    KvDtype.FLOAT16,
)
INFO = ModelInfo(
    layout=LAYOUT,
    num_linear_parameters=1000,
    num_head_parameters=100,
    num_attention_heads=2,
    head_dim=4,
    weight_bytes=2200,
    max_context_tokens=256,
    vocabulary_size=VOCABULARY_SIZE,
    eos_token_ids=(EOS,),
    engine="mock",
    device="mock",
)
GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


class WaitingMockRunner(MockRunner):
    """A mock that the host cannot run ahead of: a pass is over before `launch` returns."""

    runs_ahead = False
    max_launch_steps = 1
    launch = Runner.launch  # type: ignore[assignment]


def mock_runner(
    num_blocks: int = 64, block_tokens: int = 4, info: ModelInfo = INFO, kind: type[MockRunner] = MockRunner
) -> MockRunner:
    """Return a runner whose clock stands still; by default one that the host may run ahead of."""
    return kind(
        info,
        PRESETS["h200"],
        num_blocks=num_blocks,
        block_tokens=block_tokens,
        clock=lambda: 1.0,
        sleep=lambda _seconds: None,
    )


def expected_tokens(token_ids: Sequence[int], num_tokens: int) -> list[int]:
    """Return what the mock model says after some tokens, from its formula alone."""
    text = list(token_ids)
    for _ in range(num_tokens):
        states = states_of(text, 0, LAYOUT.num_layers)
        text += next_tokens(states.sum(dtype=np.uint64).reshape(1), VOCABULARY_SIZE, frozenset(INFO.eos_token_ids))
    return text[len(token_ids) :]


def prompt_of(length: int, seed: int = 1) -> tuple[int, ...]:
    """Return tokens without a pattern."""
    return tuple((index * index * 31 + 17 * seed + index) % VOCABULARY_SIZE for index in range(length))


def request_of(
    prompt: Iterable[int], name: str = "r", params: SamplingParams = GREEDY, **fields: object
) -> EngineRequest:
    """Return a request; `fields` are those of `EngineRequest`."""
    return EngineRequest(name, tuple(prompt), params, **fields)  # type: ignore[arg-type]


@dataclass
class Listening:
    """The events of one request, as they come."""

    events: queue.SimpleQueue[EngineEvent] = field(default_factory=queue.SimpleQueue)
    seen: list[EngineEvent] = field(default_factory=list)

    def next(self) -> EngineEvent:
        """Return the next event."""
        event = self.events.get(timeout=TIMEOUT_SECONDS)
        self.seen.append(event)
        return event

    def until(self, *kinds: type[EngineEvent]) -> EngineEvent:
        """Return the next event of some kinds."""
        while not isinstance(event := self.next(), kinds):
            pass
        return event

    @property
    def token_ids(self) -> list[int]:
        """Return the tokens seen; their indices must be consecutive."""
        tokens = [event for event in self.seen if isinstance(event, TokenReady)]
        first = tokens[0].output_index if tokens else 0
        assert [event.output_index for event in tokens] == list(range(first, first + len(tokens)))
        return [event.token.token_id for event in tokens]

    def result(self) -> list[int]:
        """Return all tokens once the request has ended well."""
        event = self.until(Ended, Failed)
        assert isinstance(event, Ended), event
        return self.token_ids


class Rig:
    """A running engine. On leaving, every block must be free."""

    def __init__(
        self,
        runner: MockRunner | None = None,
        *,
        max_batch_size: int = 8,
        max_step_tokens: int = 16,
        max_waiting: int = 1024,
        host_bytes: int = 0,
        clock: Callable[[], float] = lambda: 1.0,
        disk: DiskBlockStore | None = None,
    ) -> None:
        self.runner = runner or mock_runner()
        self.hashes: dict[Tier, set[bytes]] = {tier: set() for tier in Tier}
        self.accepted_placement_ids: list[str] = []
        self._told = threading.Condition()
        self.fatal: list[BaseException] = []
        self.engine = Engine(
            self.runner,
            SchedulerLimits(max_batch_size, max_step_tokens, max_host_bytes=host_bytes),
            post=_post,
            on_block_events=self._note,
            on_fatal=self.fatal.append,
            on_queue_change=self.accepted_placement_ids.extend,
            max_waiting=max_waiting,
            clock=clock,
            disk=disk,
        )

    def __enter__(self) -> Rig:
        self.engine.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.settle()
        finally:
            self.engine.close()

    def submit(self, request: EngineRequest) -> Listening:
        """Hand a request in."""
        listening = Listening()
        self.engine.submit(request, listening.events.put)
        return listening

    def submit_together(self, requests: Sequence[EngineRequest]) -> list[Listening]:
        """Hand requests in between two passes: none of them is computed before the last one is there."""
        listenings = self.do(lambda: [self.submit(request) for request in requests])
        assert isinstance(listenings, list)
        return listenings

    def generate(self, request: EngineRequest) -> list[int]:
        """Return the tokens of a request."""
        return self.submit(request).result()

    def do(self, function: Callable[[], object]) -> object:
        """Return what a function returns in the engine's thread, between two passes."""
        answers: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.engine.call(lambda: answers.put(function()))
        return answers.get(timeout=TIMEOUT_SECONDS)

    def settle(self) -> None:
        """Check that nothing is left: no sequence, no block, no event unsaid, no accident in the thread."""
        scheduler = self.engine.scheduler

        def check() -> str:
            scheduler.check_integrity()
            assert not scheduler.waiting, "a sequence waits"
            assert not scheduler.running, "a sequence runs"
            assert not scheduler.receiving, "a sequence receives"
            assert scheduler.pool.num_available == scheduler.pool.num_blocks, "a block is held"
            assert self.hashes[Tier.DEVICE] == set(scheduler.pool.hashes), "block events and prefix cache differ"
            assert self.hashes[Tier.HOST] == set(scheduler.offload.store.hashes), "block events and host memory differ"
            return ""

        def report() -> str:
            try:
                return check()
            except AssertionError as error:
                return str(error) or "failed"

        assert self.do(report) == ""
        assert not self.fatal

    def wait_for(self, is_true: Callable[[], bool]) -> bool:
        """Return whether in time something is true of `hashes`."""
        with self._told:
            return self._told.wait_for(is_true, TIMEOUT_SECONDS)

    def _note(self, events: BlockEvents) -> None:
        with self._told:
            self.hashes[events.tier] = self.hashes[events.tier] - set(events.removed) | set(events.stored)
            self._told.notify_all()


def _post(deliveries: list[Deliverable]) -> None:
    deliver(deliveries)


def has_written(engine: Engine, disk: DiskBlockStore) -> bool:
    """Wait until all that has left the device is on disk; return whether it is."""
    for wait_for_copies in (False, True):  # those that the engine is about to begin, too
        if wait_for_copies:
            engine._pipeline._lane.submit(int).result(TIMEOUT_SECONDS)
        reached = threading.Event()
        engine.call(reached.set)
        if not reached.wait(TIMEOUT_SECONDS):
            return False
    return is_soon_idle(disk)


def is_soon_idle(disk: DiskBlockStore) -> bool:
    """Wait until everything that a store has been asked for is done; return whether it is."""
    return disk._wait(lambda: not disk._writes and not disk._reads and disk._writing is None, TIMEOUT_SECONDS)
