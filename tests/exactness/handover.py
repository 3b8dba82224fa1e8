"""Two engines joined without a network: what one exports, the other receives, in the order of the wire."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from baton.engine.constraints.constraint import Constraint
from baton.engine.engine import Engine
from baton.engine.events import Admitted, Ended, EngineEvent, Failed, TokenReady
from baton.engine.request import EngineRequest, KvExportSpec, Purpose, SamplingParams
from baton.engine.request_registry import Deliverable, deliver
from baton.engine.runners.base import Runner
from baton.engine.sampling import SampledToken
from baton.engine.scheduling.admission import SchedulerLimits
from baton.kv.disk_store import DiskBlockStore
from baton.kv.stream import KvFrame, KvProgress, StreamLedger, payload_crc32c
from baton.prefill.kv_stream import FrameExport
from exactness.structured import compiled

TIMEOUT_SECONDS = 60.0


def start_engine(
    runner: Runner, *, max_step_tokens: int = 256, host_bytes: int = 0, disk: DiskBlockStore | None = None
) -> Engine:
    """Return a running engine whose events are delivered at once."""

    def post(deliveries: list[Deliverable]) -> None:
        deliver(deliveries)

    limits = SchedulerLimits(max_batch_size=32, max_step_tokens=max_step_tokens, max_host_bytes=host_bytes)
    engine = Engine(runner, limits, post=post, disk=disk)
    engine.start()
    return engine


@contextmanager
def held(engine: Engine) -> Iterator[None]:
    """Keep an engine from its next pass while the context lasts: what is submitted meanwhile, it sees at once."""
    gate: queue.SimpleQueue[None] = queue.SimpleQueue()
    engine.call(partial(gate.get, timeout=TIMEOUT_SECONDS))
    try:
        yield
    finally:
        gate.put(None)


@dataclass
class Generation:
    """A request under way."""

    events: queue.SimpleQueue[EngineEvent | KvFrame] = field(default_factory=queue.SimpleQueue)

    def first_token(self) -> SampledToken:
        """Wait for the first token and return it."""
        while True:
            event = self.events.get(timeout=TIMEOUT_SECONDS)
            if isinstance(event, TokenReady):
                return event.token
            assert not isinstance(event, Failed), event

    def tokens(self, first_index: int = 0) -> list[int]:
        """Wait for the end and return the output from an index on."""
        tokens: list[int] = []
        while True:
            event = self.events.get(timeout=TIMEOUT_SECONDS)
            if isinstance(event, TokenReady):
                assert event.output_index == first_index + len(tokens)
                tokens.append(event.token.token_id)
            elif isinstance(event, Failed):
                raise event.error
            elif isinstance(event, Ended):
                self.ended = event
                return tokens


def greedy(num_tokens: int) -> SamplingParams:
    """Return greedy sampling of exactly `num_tokens`."""
    return SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=num_tokens)


def generate(
    decode: Engine,
    request_id: str,
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    prefill: Engine | None = None,
    layers_per_frame: int = 1,
    output: Sequence[int] = (),
    adapter: str = "",
    num_frames: int | None = None,
) -> Generation:
    """Start a generation on `decode`, with its prompt computed on `prefill` if there is one.

    After `num_frames` the stream breaks, and `decode` computes what has not come.
    """
    generation = Generation()
    request = EngineRequest(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        output_token_ids=tuple(output),
        params=params,
        constraint=_constraint(params, output),
        purpose=Purpose.RECEIVE if prefill else Purpose.GENERATE,
        adapter=adapter,
    )

    def listen(event: EngineEvent) -> None:
        if isinstance(event, Admitted) and prefill:
            arguments = (decode, prefill, request, event.num_cached_tokens, layers_per_frame, num_frames)
            threading.Thread(target=_hand_over, args=arguments, daemon=True).start()
        generation.events.put(event)

    decode.submit(request, listen)
    return generation


def _constraint(params: SamplingParams, output: Sequence[int]) -> Constraint | None:
    return compiled(params.structured_output, output) if params.structured_output else None


def _hand_over(
    decode: Engine,
    prefill: Engine,
    request: EngineRequest,
    num_cached_tokens: int,
    layers_per_frame: int,
    num_frames: int | None,
) -> None:
    items: queue.SimpleQueue[EngineEvent | KvFrame] = queue.SimpleQueue()
    layout = prefill.runner.info.layout
    token_ids = request.prompt_token_ids + request.output_token_ids
    owed = KvProgress.begin(layout, num_cached_tokens, len(token_ids))
    prefill.submit(
        EngineRequest(
            request_id=request.request_id,
            prompt_token_ids=request.prompt_token_ids,
            output_token_ids=request.output_token_ids,
            params=request.params,
            constraint=_constraint(request.params, request.output_token_ids),
            purpose=Purpose.PREFILL,
            adapter=request.adapter,
            export=KvExportSpec(FrameExport(layout, owed, layers_per_frame, items.put), token_begin=num_cached_tokens),
        ),
        items.put,
    )
    ledger = StreamLedger(layout, owed)
    sequence_number = 0
    while True:
        item = items.get(timeout=TIMEOUT_SECONDS)
        if isinstance(item, KvFrame):
            ledger.enter(item, sequence_number, payload_crc32c(item.keys, item.values))
            sequence_number += 1
            decode.write_kv(request.request_id, item)
            if sequence_number == num_frames:
                decode.fall_back(request.request_id, ledger.totals.token_end)
                return
        elif isinstance(item, TokenReady):
            decode.take_first_token(request.request_id, item.token)
        elif isinstance(item, Ended):
            ledger.close(ledger.totals)
            decode.commit_kv(request.request_id)
            return
        elif isinstance(item, Failed):
            raise item.error
