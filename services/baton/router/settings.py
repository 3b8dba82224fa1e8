"""Settings of the router."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from baton.capacity.kv_transfer import WirePolicy
from baton.capacity.objectives import Objectives
from baton.capacity.snapshot import DECLARED_LINK
from baton.config.settings import ServiceSettings
from baton.router.admission.control import AdmissionLimits, OverloadPolicy
from baton.router.placer import PlacementPolicy
from baton.router.state import StateLimits
from baton.security.tls import ServerTlsSettings
from baton.telemetry.metrics_server import MetricsSettings

_WIRE_DTYPE = "auto|cache|bfloat16|float16|int8|affine8|fp8"


class RouterAddressSettings(ServiceSettings):
    """Where the router listens, and whom it asks."""

    group: ClassVar[str] = "Addresses"

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=8010, ge=0, le=65535)
    """Port to listen on; 0: any free one."""
    cache_index_address: str = ""
    """host:port of the cache index; empty: no prefix is expected anywhere."""
    cache_lookup_seconds: float = Field(default=0.05, gt=0)
    """Longest wait for the cache index; after it, no prefix is expected anywhere."""
    drain_seconds: float = Field(default=2.0, ge=0)
    """Grace for running calls on SIGTERM."""
    models_file: Path | None = None
    """TOML file of the models that machines with an agent shall serve, written back as `baton models` changes them; of
    several routers with one file, one leads. None: they are forgotten as the router ends."""
    models_lease: str = ""
    """Kubernetes Lease by which one of several routers leads, each with a file of its own; empty: the file's lock."""
    model_turn_seconds: float = Field(default=30.0, ge=0)
    """Time that a model on demand keeps its place at least, from when it serves, while requests for others wait for it:
    beside loading, no model delays another one for longer."""


class LoadReportSettings(ServiceSettings):
    """How fresh what is known of nodes must be."""

    group: ClassVar[str] = "Load reports of nodes"

    report_interval_seconds: float = Field(default=0.5, gt=0)
    """Longest time between load reports that nodes are asked for."""
    silent_seconds: float = Field(default=5.0, gt=0)
    """A node without a load report for longer is no candidate; for three tenths of it, while others are heard."""
    stuck_seconds: float = Field(default=20.0, gt=0)
    """A node with work and no engine step for longer is no candidate."""
    warm_up_seconds: float = Field(default=3.0, ge=0)
    """Time after the start for which placements wait until nodes have registered, and no other does; 0: none waits."""
    assumed_ttl_seconds: float = Field(default=10.0, gt=0)
    """Longest time that a placement is counted without a load report that covers it."""


class PlacementSettings(ServiceSettings):
    """What placement prefers, and what it takes for granted."""

    group: ClassVar[str] = "Placement"
    prefill_policy: PlacementPolicy = "cheapest"
    """The cheapest candidate first, or "local" or "remote" prefill wherever feasible (for tests and demonstrations).
    "round-robin": every decode node and every prefill node in turn, whatever it costs (to compare with)."""
    kv_wire_dtype: str = Field(default="auto", pattern=f"^({_WIRE_DTYPE})(/({_WIRE_DTYPE}))?$")
    """In what KV travels: cache, bfloat16, float16, int8, affine8, fp8, or two as K/V (cache/int8). auto: lossless, but
    where the link is the bottleneck what `kv_allowed_loss` permits. To name a format is to permit its loss."""
    kv_allowed_loss: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Largest loss that auto may cause: nats of KL divergence of the next token's distribution, as nodes measured it at
    start. 0: none, so that outputs do not depend on placement."""
    default_link_bytes_per_second: float = Field(default=DECLARED_LINK.bytes_per_second, gt=0)
    """Declared rate of links that nobody has measured, bytes/s."""


class OverloadSettings(ServiceSettings):
    """What requests are to get, and what becomes of those that would not."""

    group: ClassVar[str] = "Overload"

    overload_policy: OverloadPolicy = "queue"
    """What becomes of a request that would miss its objectives, or make running ones miss theirs: queue (it waits),
    shed (it is refused: 429 with Retry-After), degrade (its output is cut; what would miss them by far is refused)."""
    slo_ttft_seconds: float = Field(default=0.0, ge=0, le=3600)
    """Time to first token within which requests are good that bring no objective of their own; 0: none."""
    slo_tpot_seconds: float = Field(default=0.0, ge=0, le=60)
    """Mean time per output token within which requests are good that bring no objective of their own; 0: none."""
    degraded_max_tokens: int = Field(default=64, ge=1)
    """Output tokens of a degraded request at most."""
    degraded_slo_factor: float = Field(default=2.0, ge=1, le=100)
    """How many times its objectives a degraded request may take; what would take longer is refused."""


class JoinSettings(ServerTlsSettings):
    """How machines and pods join. Off unless `join_port` is set; then TLS is needed, and the key of its authority."""

    model_config = SettingsConfigDict(use_attribute_docstrings=True)

    group: ClassVar[str] = "Machines that join"

    join_port: int = Field(default=0, ge=0, le=65535)
    """Port on which machines join by a token (`baton agent`), and pods by that of their account; 0: none can."""
    join_secret_file: Path | None = None
    """Holds the secret of the join token, 32 characters or more (`baton authority create` makes one)."""
    join_authority_key_file: Path | None = None
    """Key of the first certificate in tls_ca_file, PEM: signs the certificates of machines that join."""
    join_assignments_file: Path | None = None
    """TOML file with a `[[node]]` table for each kind of machine: what it runs. Read again for every one that joins."""
    join_certificate_days: float = Field(default=30.0, gt=0, le=3650)
    """Validity of a joined machine's certificate; the agent renews it after two thirds."""
    join_router_address: str = ""
    """host:port of this router as joined machines reach it; empty: the host that they asked, this router's port."""
    join_cache_index_address: str = ""
    """The same of the cache index; empty: the host that they asked, the cache index's port."""
    join_pods: str = ""
    """Service accounts of this pod's namespace whose pods get certificates, ACCOUNT=NAME and so on with commas: NAME is
    `gateway`, `cache-index`, or `node` for the pod's own. This router then signs its own, too."""
    join_pod_hours: float = Field(default=24.0, gt=0, le=8760)
    """Validity of a pod's certificate; it is renewed after two thirds."""
    announce_address: str = ""
    """IPv4 address of this machine on whose network multicast DNS announces the join service; empty: nothing does."""

    @model_validator(mode="after")
    def _check_join(self) -> Self:
        machines = () if self.join_pods and not self.join_secret_file else ("join_secret_file", "join_assignments_file")
        needed = {name: getattr(self, name) for name in (*machines, "join_authority_key_file")}
        if self.tls_lan_dir:  # what is needed is there once it opens
            return self
        if self.announce_address and not self.join_port:
            raise ValueError("announce_address: there is nothing to announce without join_port")
        if not self.join_port:
            given = [name for name in (*needed, "join_pods") if getattr(self, name)]
            if given:
                raise ValueError(f"{', '.join(given)}: without effect unless join_port is set")
            return self
        if self.tls_ca_file is None:
            raise ValueError("join_port: needs TLS (tls_cert_file, tls_key_file, tls_ca_file)")
        missing = [name for name, path in needed.items() if path is None]
        unreadable = [f"{name}: no file {path}" for name, path in needed.items() if path and not path.is_file()]
        if missing or unreadable:
            raise ValueError("; ".join([*(f"{name}: needed with join_port" for name in missing), *unreadable]))
        if wrong := {*self.pod_accounts().values()} - {"gateway", "cache-index", "node"}:
            names = ", ".join(sorted(wrong))
            raise ValueError(f"join_pods: expected ACCOUNT=gateway, =cache-index or =node and so on, got {names!r}")
        return self

    def pod_accounts(self) -> Mapping[str, str]:
        """Return what pods of which service account are."""
        pairs = (part.partition("=") for part in self.join_pods.split(",") if part)
        return {account.strip(): name.strip() for account, _, name in pairs}

    @property
    def is_enrolling(self) -> bool:
        """Return whether this process writes tls_cert_file and tls_key_file itself, by the authority's key."""
        return bool(self.join_pods)


class RouterSettings(
    RouterAddressSettings, LoadReportSettings, PlacementSettings, OverloadSettings, MetricsSettings, JoinSettings
):
    """Read from the environment, prefix BATON_ROUTER_; arguments win."""

    model_config = SettingsConfigDict(env_prefix="BATON_ROUTER_")

    def limits(self) -> StateLimits:
        """Return the part that the router's state needs."""
        return StateLimits(
            stuck_seconds=self.stuck_seconds,
            silent_seconds=self.silent_seconds,
            assumed_ttl_seconds=self.assumed_ttl_seconds,
            default_link=replace(DECLARED_LINK, bytes_per_second=self.default_link_bytes_per_second),
            wire_policy=self.wire_policy(),
        )

    def admission(self) -> AdmissionLimits | None:
        """Return what admission holds requests to; None: everything is admitted, and queues."""
        if self.overload_policy == "queue":
            return None
        return AdmissionLimits(
            self.overload_policy,
            Objectives(self.slo_ttft_seconds, self.slo_tpot_seconds),
            self.degraded_max_tokens,
            self.degraded_slo_factor,
        )

    def wire_policy(self) -> WirePolicy:
        """Return in what KV may travel."""
        keys, _, values = self.kv_wire_dtype.partition("/")
        return WirePolicy(keys, values or keys, self.kv_allowed_loss)
