"""Span attributes of a KV frame."""

from __future__ import annotations

from typing import Protocol

from baton.telemetry import names


class Frame(Protocol):
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


def frame_attributes(frame: Frame) -> dict[str, int]:
    """Return the attributes of the events of a frame."""
    return {
        names.LAYER: frame.layer_begin,
        names.LAYER_COUNT: frame.num_layers,
        names.TOKEN_START: frame.token_begin,
        names.TOKEN_COUNT: frame.num_tokens,
        names.BYTE_COUNT: frame.num_bytes,
    }
