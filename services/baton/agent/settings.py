"""Settings of the agent."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from baton.rpc.tls import ServerTlsSettings
from baton.telemetry.metrics_server import MetricsSettings


class AgentSettings(MetricsSettings, ServerTlsSettings):
    """Read from the environment, prefix BATON_AGENT_; arguments win."""

    model_config = SettingsConfigDict(
        env_prefix="BATON_AGENT_", extra="forbid", frozen=True, use_attribute_docstrings=True
    )

    host: str = "127.0.0.1"
    """Address on which agent and worker listen."""
    port: int = Field(default=8040, ge=0, le=65535)
    """Port of the agent; 0: any free one."""
    worker_role: Literal["prefill", "decode"]
    """What the worker serves."""
    worker_port: int = Field(default=8020, ge=1, le=65535)
    """Port of the worker, where its health is asked for."""
    worker_node_id: str = Field(pattern=r"^[a-z0-9-]{1,63}$")
    """Node id of the worker."""
    worker_arguments: str = ""
    """Further flags of `baton serve ROLE`, quoted as in a shell, e.g. "--engine mlx --model /models/llama"."""
    start_timeout_seconds: float = Field(default=600.0, gt=0)
    """Longest time from the worker's start until it is healthy; after it the worker is started again."""
    health_interval_seconds: float = Field(default=2.0, gt=0)
    """Pause between health checks."""
    num_failed_checks: int = Field(default=3, ge=1)
    """Failed checks in a row after which a worker that was healthy is started again."""
    stop_grace_seconds: float = Field(default=15.0, ge=0)
    """Time from SIGTERM to SIGKILL when the worker is stopped."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged."""
