"""Settings of a prefill node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from baton.config.memory_budget import Claim
from baton.node.settings import NodeSettings, given
from baton.rpc.server import host_port

MOST_OUTBOX_BYTES = 4 << 30
"""KV that waits to be sent where nobody says how much."""
LEAST_OUTBOX_BYTES = 16 << 20
"""A frame of the largest size."""


class PrefillSettings(NodeSettings):
    """Read from the environment, prefix BATON_PREFILL_; arguments win."""

    model_config = SettingsConfigDict(env_prefix="BATON_PREFILL_")

    group: ClassVar[str] = "KV for decode nodes"
    port: int = 8020
    """Port to listen on; 0: any free one."""
    max_outbox_bytes: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Bytes of KV that may wait to be sent, over all streams; a prompt whose KV has no room beside others' waits; auto:
    a share of the memory that the model leaves, up to 4 GiB."""
    fast_port: int = Field(default=0, ge=0, le=65535)
    """Port of the fast path, on which decode nodes take KV from plain sockets; 0: any free one."""
    fast_advertise_address: str = ""
    """host:port under which decode nodes reach the fast path; empty: the host that is advertised, and `fast_port`."""

    def memory_claims(self) -> Sequence[Claim]:
        """Return what holds main memory besides model and blocks."""
        outbox = Claim(
            "max_outbox_bytes",
            MOST_OUTBOX_BYTES,
            LEAST_OUTBOX_BYTES,
            weight=2,
            given_bytes=given(self.max_outbox_bytes),
        )
        return [*super().memory_claims(), outbox]

    @model_validator(mode="after")
    def _check_kv(self) -> Self:
        if self.kv_quantization != "none":
            raise ValueError("kv_quantization: other nodes take this node's KV for exact; expected none")
        return self

    def advertised_fast(self, port: int) -> str:
        """Return host:port of the fast path for other nodes, given the port that it listens on."""
        return self.fast_advertise_address or host_port(self.advertised_host, port)
