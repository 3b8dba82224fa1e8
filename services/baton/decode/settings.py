"""Settings of a decode node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from baton.capacity.prefix_reuse import MAX_FRAME_BYTES
from baton.config.memory_budget import Claim
from baton.decode.kv_stream.receive_budget import LEAST_FRAME_BYTES, receive_bytes_for
from baton.node.settings import NodeSettings, given

MOST_LENT_BYTES = 256 << 20
"""Memory lent to prefill nodes of this host where nobody says how much."""


class DecodeSettings(NodeSettings):
    """Read from the environment, prefix BATON_DECODE_; arguments win."""

    model_config = SettingsConfigDict(env_prefix="BATON_DECODE_")

    group: ClassVar[str] = "KV from other nodes"
    port: int = 8030
    """Port to listen on; 0: any free one."""
    frame_timeout_seconds: float = Field(default=10.0, gt=0)
    """Longest silence of a KV stream once its prefill has begun; then the prompt is computed here, but not
    before twice the time in which the router expected the first token."""
    prefill_queue_timeout_seconds: float = Field(default=30.0, gt=0)
    """Longest wait for the first frame of a KV stream; then the prompt is computed here, as above."""
    kv_transport: Literal["auto", "grpc", "fast", "shared"] = "auto"
    """What carries KV: shared is memory that two nodes of one host share, fast gRPC on plain sockets, grpc the gRPC
    library; auto is the first of them that works."""
    max_receive_bytes: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Bytes of KV that have arrived, or are arriving, and are not in blocks yet, over all streams; others wait at their
    senders; auto: a share of the memory that the model leaves, up to what 16 MiB frames need."""
    shared_memory_bytes: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"
    """Bound of the memory that is lent to prefill nodes of this host (Linux), 48 MiB a KV stream; below that: none;
    auto: a share of the memory that the model leaves, up to 256 MiB."""
    probe_bytes: int = Field(default=8 << 20, ge=0, le=256 << 20)
    """Bytes with which the link from each other node is measured; 0: not measured."""

    def memory_claims(self) -> Sequence[Claim]:
        """Return what holds main memory besides model and blocks."""
        received = Claim(
            "max_receive_bytes",
            receive_bytes_for(self.max_batch_size, MAX_FRAME_BYTES),
            receive_bytes_for(self.max_batch_size, LEAST_FRAME_BYTES),
            weight=2,
            given_bytes=given(self.max_receive_bytes),
        )
        lent = Claim("shared_memory_bytes", MOST_LENT_BYTES, weight=0.5, given_bytes=given(self.shared_memory_bytes))
        return [*super().memory_claims(), received, lent]
