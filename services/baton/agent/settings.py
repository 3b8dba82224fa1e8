"""Settings of the agent."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from baton.config.settings import ServiceSettings
from baton.errors import ConfigurationError
from baton.security.tls import ServerTlsSettings
from baton.telemetry.metrics_server import MetricsSettings
from baton.weight_transfer.pace import WeightSettings

DEFAULT_STATE_DIR = Path("~/.local/state/baton-agent")
"""Where a machine's files are unless a setting says otherwise."""


class SupervisedWorkerSettings(ServiceSettings):
    """The worker that an agent runs, and when it is started again."""

    group: ClassVar[str] = "Worker"
    worker_role: Literal["prefill", "decode", "worker", ""] = ""
    """What the worker serves (worker: both); empty: what the router assigns to a machine that joins."""
    worker_port: int = Field(default=8020, ge=1, le=65535)
    """Port of the worker, where its health is asked for."""
    worker_node_id: str = Field(default="", pattern=r"^[a-z0-9-]{0,63}$")
    """Node id of the worker; empty: the host's name."""
    worker_arguments: str = ""
    """Further flags of `baton serve ROLE`, quoted as in a shell, e.g. "--engine mlx --model-dir /models/llama"; they
    win over what the router assigns."""
    start_timeout_seconds: float = Field(default=600.0, gt=0)
    """Longest time from the worker's start until it is healthy; after it the worker is started again."""
    stop_grace_seconds: float = Field(default=15.0, ge=0)
    """Time from SIGTERM to SIGKILL when the worker is stopped."""
    sleep_wait_seconds: float = Field(default=4.0, ge=0, le=25)
    """Longest time that requests have to end when the machine is about to sleep; systemd waits 5 s."""

    @property
    def node_id(self) -> str:
        """Return the node id of the worker."""
        return self.worker_node_id or node_id_of(socket.gethostname())


class MembershipSettings(ServiceSettings):
    """How this machine joins a deployment."""

    group: ClassVar[str] = "Joining"
    join_token: SecretStr = SecretStr("")
    """Token by which this machine joins a deployment; empty: it joins none, and `worker_role` says what runs."""
    join_token_file: Path | None = None
    """File that holds the token instead."""
    join_address: str = ""
    """host:port of the router's join service, of several with commas; empty: found by multicast DNS on the network."""
    state_dir: Path = DEFAULT_STATE_DIR
    """Folder for this machine's key and certificate."""

    @property
    def is_joining(self) -> bool:
        """Return whether this machine joins a deployment."""
        return bool(self.join_token.get_secret_value()) or self.join_token_file is not None

    def read_join_token(self) -> str:
        """Return the token from its setting or its file; empty: this machine joins no deployment."""
        if self.join_token_file is None:
            return self.join_token.get_secret_value()
        try:
            return self.join_token_file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"join_token_file: {error}") from error

    @property
    def state_folder(self) -> Path:
        """Return where this machine's files are."""
        return self.state_dir.expanduser()


class AgentSettings(SupervisedWorkerSettings, MembershipSettings, WeightSettings, MetricsSettings, ServerTlsSettings):
    """Read from the environment, prefix BATON_AGENT_; arguments win."""

    model_config = SettingsConfigDict(env_prefix="BATON_AGENT_")

    group: ClassVar[str] = "Agent"

    host: str = "127.0.0.1"
    """Address on which agent and worker listen."""
    port: int = Field(default=8040, ge=0, le=65535)
    """Port of the agent; 0: any free one."""
    router_address: str = ""
    """Routers by whose orders a machine that joins none serves further models: host:port, of several with commas, or
    kubernetes://SERVICE[.NAMESPACE]:PORT; empty: it serves none."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged."""

    def exposures(self) -> Sequence[str]:
        """Return what other machines are served without a certificate; one that joins gets one first."""
        return () if self.is_joining else super().exposures()

    @model_validator(mode="after")
    def _check_join(self) -> Self:
        if self.join_token.get_secret_value() and self.join_token_file is not None:
            raise ValueError("join_token, join_token_file: give one of them")
        if self.is_joining:
            given = [name for name in ("worker_role", "tls_cert_file") if getattr(self, name)]
            if given:
                raise ValueError(f"{given[0]}: comes from the router where this machine joins by a token")
        elif not self.worker_role:
            raise ValueError("worker_role: needed (prefill, decode or worker) unless this machine joins by join_token")
        elif self.join_address:
            raise ValueError("join_address: without effect unless join_token or join_token_file is given")
        return self


def node_id_of(host_name: str) -> str:
    """Return a host's name without its domain, in the characters of node ids."""
    return re.sub(r"[^a-z0-9]+", "-", host_name.partition(".")[0].lower())[:63].strip("-") or "node"
