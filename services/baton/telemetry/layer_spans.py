"""Child spans of a KV stream, one per frame: when its layers were computed, and when they were on their way.

A trace view draws spans, not events, as bars: these are what shows the overlap there.

Span attributes of a KV frame.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from opentelemetry import trace

from baton.telemetry import names
from baton.telemetry.tracing import tracer

MAX_SPANS = 512
"""Of one stream; later frames have none."""

_SECOND_NANOSECONDS = 1e9


class LayerSpans:
    """Makes the spans of one stream, as children of the span that is current; nothing where that is not recorded.

    Args:
        verb: What a span shows: "compute" or "transfer".
        clock: Clock of the times that `add` takes, seconds.
    """

    def __init__(self, verb: names.LayerVerb, clock: Callable[[], float]) -> None:
        self._verb = verb
        self._since_epoch = time.time_ns() - round(clock() * _SECOND_NANOSECONDS)
        self._num_spans = 0

    def add(self, frame: FrameExtent, begin: float, end: float) -> None:
        """Add the span of a frame whose layers were computed, or on their way, from `begin` to `end`."""
        if self._num_spans == MAX_SPANS or not trace.get_current_span().is_recording():
            return
        self._num_spans += 1
        span = tracer().start_span(
            names.layers_span(self._verb, frame.layer_begin, frame.num_layers),
            attributes=frame_attributes(frame),
            start_time=self._nanoseconds(begin),
        )
        span.end(self._nanoseconds(max(begin, end)))

    def _nanoseconds(self, seconds: float) -> int:
        return self._since_epoch + round(seconds * _SECOND_NANOSECONDS)


class FrameExtent(Protocol):
    """What is told of a frame; `baton.kv.stream.KvFrame` is one."""

    @property
    def layer_begin(self) -> int:
        """First layer."""

    @property
    def num_layers(self) -> int:
        """Layers."""

    @property
    def token_begin(self) -> int:
        """First position."""

    @property
    def num_tokens(self) -> int:
        """Positions."""

    @property
    def num_bytes(self) -> int:
        """Payload."""


def frame_attributes(frame: FrameExtent) -> dict[str, int]:
    """Return the attributes of the events of a frame."""
    return {
        names.LAYER: frame.layer_begin,
        names.LAYER_COUNT: frame.num_layers,
        names.TOKEN_START: frame.token_begin,
        names.TOKEN_COUNT: frame.num_tokens,
        names.BYTE_COUNT: frame.num_bytes,
    }
