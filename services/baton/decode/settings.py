"""Settings of a decode node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from baton.node.settings import NodeSettings


class DecodeSettings(NodeSettings):
    """Read from the environment, prefix BATON_DECODE_; arguments win."""

    model_config = SettingsConfigDict(env_prefix="BATON_DECODE_")

    group: ClassVar[str] = "KV from other nodes"
    dropped: ClassVar[Mapping[str, str]] = {
        "ingest_share": "arriving KV is written as long as those who wait for it gain by what the others lose"
    }

    port: int = 8030
    """Port to listen on; 0: any free one."""
    frame_timeout_seconds: float = Field(default=10.0, gt=0)
    """Longest silence of a KV stream once its prefill has begun; then the prompt is computed here."""
    prefill_queue_timeout_seconds: float = Field(default=30.0, gt=0)
    """Longest wait for the first frame of a KV stream; then the prompt is computed here."""
    kv_transport: Literal["auto", "grpc", "fast", "shared"] = "auto"
    """What carries KV: shared is memory that two nodes of one host share, fast gRPC on plain sockets, grpc the gRPC
    library; auto is the first of them that works."""
    shared_memory_bytes: int = Field(default=256 << 20, ge=0)
    """Bound of the memory that is lent to prefill nodes of this host (Linux), 48 MiB a KV stream; below that: none."""
    probe_bytes: int = Field(default=8 << 20, ge=0, le=256 << 20)
    """Bytes with which the link from each other node is measured; 0: not measured."""
