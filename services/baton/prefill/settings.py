"""Settings of a prefill node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from baton.node.settings import NodeSettings
from baton.rpc.server import host_port


class PrefillSettings(NodeSettings):
    """Read from the environment, prefix BATON_PREFILL_; arguments win."""

    model_config = SettingsConfigDict(env_prefix="BATON_PREFILL_")

    group: ClassVar[str] = "KV for decode nodes"
    dropped: ClassVar[Mapping[str, str]] = {
        "fast_path": "KV is always offered on plain sockets too; decode nodes choose with --kv-transport"
    }

    port: int = 8020
    """Port to listen on; 0: any free one."""
    max_outbox_bytes: int = Field(default=4 << 30, ge=1)
    """Bytes of KV that may wait to be sent, over all streams; a prompt whose KV has no room beside others' waits."""
    fast_port: int = Field(default=0, ge=0, le=65535)
    """Port of the fast path, on which decode nodes take KV from plain sockets; 0: any free one."""
    fast_advertise_address: str = ""
    """host:port under which decode nodes reach the fast path; empty: the host that is advertised, and `fast_port`."""

    @model_validator(mode="after")
    def _check_kv(self) -> Self:
        if self.kv_quantization != "none":
            raise ValueError("kv_quantization: other nodes take this node's KV for exact; expected none")
        return self

    def advertised_fast(self, port: int) -> str:
        """Return host:port of the fast path for other nodes, given the port that it listens on."""
        return self.fast_advertise_address or host_port(self.advertised_host, port)
