"""What a node is told of requests whose prompt another node computes: KV, the first token, the end or its failure."""

from __future__ import annotations

from collections.abc import Callable

from baton.engine.execution.pipeline import Pipeline
from baton.engine.kv_cache.ingest import FrameCursor, Ingest
from baton.engine.request_registry import RequestRegistry
from baton.engine.runners.base import Runner
from baton.engine.sampling import SampledToken
from baton.engine.scheduling.scheduler import Scheduler
from baton.engine.sequence import Phase, Sequence
from baton.kv.stream import KvFrame


class Receptions:
    """Carries out what is told, in the order in which it is told of each request. Used by the engine's thread alone.

    Invariant: nothing is done for a request that does not receive any more: after an abort nothing late can land.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        registry: RequestRegistry,
        ingest: Ingest,
        pipeline: Pipeline,
        clock: Callable[[], float],
    ) -> None:
        self._runner, self._scheduler = runner, scheduler
        self._registry, self._ingest = registry, ingest
        self._pipeline, self._clock = pipeline, clock

    def write_kv(self, request_id: str, frame: KvFrame, *, is_rounded: bool) -> None:
        """Have a frame written when there is time."""
        sequence = self._receiving(request_id)
        if sequence is None:
            return
        sequence.is_rounded |= is_rounded
        with self._registry.failing(sequence):
            self._pipeline.copy_out()
            num_kv_heads = self._runner.info.layout.layers[frame.layer_begin].num_kv_heads
            self._ingest.add(sequence, FrameCursor(frame, num_kv_heads, self._runner.block_tokens))

    def take_first_token(self, request_id: str, token: SampledToken) -> None:
        """Deliver the token that the other node sampled."""
        sequence = self._receiving(request_id)
        if sequence is not None:
            sequence.token_ids.append(token.token_id)
            self._registry.token(sequence, token)
            self._registry.end_if_complete(sequence)

    def commit(self, request_id: str, came_seconds: float) -> None:
        """Let a request decode whose KV has all come by `came_seconds`, once it is written."""

        def commit(sequence: Sequence) -> None:
            sequence.stats.join_seconds = self._clock() + self._pipeline.seconds_left - came_seconds
            self._registry.joined(sequence, misses_step=self._pipeline.is_in_flight)
            self._scheduler.commit_received(sequence)

        self._change(request_id, commit)

    def fall_back(self, request_id: str, num_received_tokens: int) -> None:
        """Have a request computed here, but for the leading positions that are here and right."""
        self._change(request_id, lambda sequence: self._scheduler.fall_back(sequence, num_received_tokens))

    def _change(self, request_id: str, change: Callable[[Sequence], None]) -> None:
        sequence = self._receiving(request_id)
        if sequence is not None:
            self._ingest.after(sequence, lambda: change(sequence))

    def _receiving(self, request_id: str) -> Sequence | None:
        sequence = self._registry.get(request_id)
        return sequence if sequence is not None and sequence.phase is Phase.RECEIVING else None
