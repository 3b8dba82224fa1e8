"""Settings of the gateway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from baton.config.settings import REPEATABLE, ServiceSettings
from baton.rpc.server import PortLimits
from baton.security.exposure import ExposureSettings, is_loopback
from baton.security.tls import PublicCertificate, TlsSettings
from baton.weights.hub import ModelFolder
from baton.weights.model_name import served_name_of

_CONNECTION_SHARE = 0.8
"""Of the pause before the drain: age of gRPC connections, which may vary by a tenth."""
_CLIENTS_MESSAGE_BYTES = 4 << 20
"""What clients take in a message unless they are told otherwise."""
_NUM_STREAMS = 1024
"""Calls of one connection at once; a proxy has all of its clients' on a few."""
_PING_MILLISECONDS, _NUM_PING_STRIKES = 100, 32
"""Keepalives of clients come every second at most; those of one that measures its link, each upon what it was sent."""


class ChatModelSettings(ServiceSettings):
    """Models as clients see them: tokenizers, chat templates, formats of output, names."""

    group: ClassVar[str] = "Model"

    model_dir: ModelFolder | None = None
    """Hugging Face folder with tokenizer and chat template of a model, or `org/name[@revision]` of a hub: this model is
    served from there, whether a node is there or not. All others are served as nodes have them, none: every one is."""
    model_name: str = ""
    """Name under which nodes serve the model of `model_dir`; empty: the hub's, or the folder's name."""
    model_aliases: str = Field(default="", json_schema_extra={REPEATABLE: True})
    """ALIAS=MODEL: further names for models and adapters, separated by commas; an alias wins over a model's name."""
    model_wait_seconds: float = Field(default=5.0, ge=0)
    """Longest time that a request waits for a model which is being loaded; then it is refused with 503, Retry-After and
    the progress. 0: at once."""
    model_forget_seconds: float = Field(default=600.0, gt=0)
    """Time after the last node of a model for which requests for it are refused with 503, then with 404; until then its
    tokenizer stays in memory. `model_dir` is never forgotten."""
    tokenizer_cache_dir: str = "~/.cache/baton/tokenizers"
    """Where tokenizers are kept that nodes have given, by digest, 64 at most; several gateways may share it."""
    tool_call_parser: str = "auto"
    """Format of tool calls: deepseek, gemma, glm, harmony, hermes, kimi, llama_json, minimax, mistral, nemotron,
    pythonic, qwen_coder, none; auto: as the chat template has it. Of `model_dir`'s model alone where that is set;
    others are as their templates have it."""
    reasoning_parser: str = "auto"
    """Format in which the model marks its reasoning: gemma, harmony, mistral, think, none; auto: that of its chat
    template. Like `tool_call_parser`."""
    tokenizer_threads: int = Field(default=1, ge=1, le=16)
    """Threads that render templates, tokenize and hash; texts above 64 KiB have half as many, 1 or more, apart."""

    @model_validator(mode="after")
    def _check_models(self) -> Self:
        if self.model_name and self.model_dir is None:
            raise ValueError("model_name: without effect, because model_dir is not set: nodes name their models")
        for alias, target in self.aliases_of_models.items():
            if target in self.aliases_of_models:
                raise ValueError(f"model_aliases: {alias[:200]!r} stands for an alias, expected a model or an adapter")
        return self

    @property
    def served_name(self) -> str:
        """Return the name under which the model of `model_dir` is served; empty if there is none."""
        return self.model_name or (served_name_of(self.model_dir) if self.model_dir else "")

    @property
    def aliases_of_models(self) -> Mapping[str, str]:
        """Return what each alias stands for; raise ValueError naming the part that is not ALIAS=MODEL."""
        return _pairs("model_aliases", self.model_aliases, "ALIAS=MODEL, each alias once")


class GatewayAddressSettings(ServiceSettings):
    """Where clients and scrapers reach the gateway, and where it finds the router."""

    group: ClassVar[str] = "Addresses"
    aliases: ClassVar[Mapping[str, Sequence[str]]] = {"host": ("http_host", "grpc_host"), "port": ("http_port",)}
    http_host: str = "127.0.0.1"
    """Address of the REST API."""
    http_port: int = Field(default=8000, ge=0, le=65535)
    """Port of the REST API; 0: any free one."""
    grpc_host: str = "127.0.0.1"
    """Address of the gRPC API."""
    grpc_port: int = Field(default=8001, ge=0, le=65535)
    """Port of the gRPC API; 0: any free one."""
    router_address: str = "127.0.0.1:8010"
    """host:port of the router; several, separated by commas: another one is asked where one is silent."""
    node_poll_seconds: float = Field(default=1.0, gt=0)
    """Pause between looks at the router's list of nodes."""
    processes: int = Field(default=1, ge=1, le=64)
    """Processes that share both ports (SO_REUSEPORT), each with an event loop of its own.

    One that ends is started again. Limits, of keys too, hold for each process by itself; clients may reach all of them.
    """
    metrics_port: int = Field(default=0, ge=0, le=65535)
    """Port of /metrics alone; of several processes, the first one's, those after it have the next ones; 0: none.

    With several processes it must be set, and the shared port has no /metrics: it would be that of any of them.
    """

    @model_validator(mode="after")
    def _check_processes(self) -> Self:
        if self.processes > 1:
            for field in ("http_port", "grpc_port", "metrics_port"):
                if getattr(self, field) == 0:
                    raise ValueError(f"{field}: expected a port, because processes is {self.processes}")
        return self

    @property
    def is_shared(self) -> bool:
        """Return whether this process shares its ports with others."""
        return self.processes > 1


class ClientSettings(ServiceSettings):
    """Who may ask for what, and how much."""

    group: ClassVar[str] = "Clients"
    api_keys_file: Path | None = None
    """File with one `name:key` per line, `#` for comment lines, read again when it changes; none: everybody may ask.

    With ` admin` behind it a key is an administrator's, whom /metrics, /ui and exo's cluster API (/models, /state,
    /instance) answer; with ` weight=3` its name has three times the share of others where more is asked for than can
    be done. Without a file they answer everybody, exo's only if the gateway listens on loopback. A key that
    is taken out ends what runs under it.
    """
    tenant_secret_file: Path | None = None
    """File with 32 characters or more, equal for all gateways: from it and a key's name follows the salt of its owner's
    prefix cache, which nobody else can then work out. None: from the name alone. It is read again when it changes: a
    further line `SECRET from=2026-01-31T09:00Z` takes its place in the hour from then on, one owner after another.
    """
    key_requests_per_minute: int = Field(default=0, ge=0)
    """Requests that the keys of one name may make per minute, a minute's worth at once; more are refused with 429; 0:
    any. A request counts once for each of its choices. Without keys, all clients together.
    """
    key_tokens_per_minute: int = Field(default=0, ge=0)
    """Tokens of prompts and outputs that the keys of one name may use per minute, in the same way; 0: any."""
    key_max_concurrent_requests: int = Field(default=0, ge=0)
    """Requests of the keys of one name in work at once, each choice counted; more are refused with 429; 0: any."""
    key_earliest_priority: int = Field(default=0, ge=-100, le=100)
    """Earliest `priority` of requests whose API key is no administrator's; an earlier one is taken for this."""
    max_concurrent_requests: int = Field(default=1024, ge=1)
    """Requests of one model in work at once, each choice counted; more are refused with 429. Other models have places
    of their own.

    Names of keys share the places by weight: one that has less than its share finds a place where all are taken.
    """
    model_max_concurrent_requests: str = Field(default="", json_schema_extra={REPEATABLE: True})
    """MODEL=NUMBER: the same for some models, separated by commas; for others `max_concurrent_requests` counts. Aliases
    and adapters count for their model."""
    cors_allow_origins: str = ""
    """Comma-separated origins whose pages may read answers in a browser, `*`: any; empty: none."""
    allowed_hosts: str = ""
    """Comma-separated names by which clients may call the REST API, `*`: any; what others ask for is refused with 421.

    Addresses, names without a domain, this machine's and those of private networks (.local, .internal, .svc) are taken
    anyway, and with API keys or HTTPS of its own all: no page of a stranger can have such a name point here.
    """
    strict: bool = False
    """Whether fields that are not served, also unknown ones and hints, are refused with 400.

    Else they are left out, and named in the answer (`baton`, `ignored`); what would break a promise is refused anyway.
    """
    ui: bool = True
    """Whether /ui shows the cluster, the last requests and a chat box, to administrators where keys are set.

    Of several processes that share a port each shows its own requests.
    """

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        _ = self.limits_of_models
        return self

    @property
    def limits_of_models(self) -> Mapping[str, int]:
        """Return how many requests of a model may be in work; raise ValueError naming what is not MODEL=NUMBER."""
        name, expected = "model_max_concurrent_requests", "MODEL=NUMBER, 1 or more, each model once"
        pairs = _pairs(name, self.model_max_concurrent_requests, expected)
        for model, number in pairs.items():
            if not number.isdecimal() or int(number) < 1:
                raise ValueError(f"{name}: expected {expected}, got {f'{model}={number}'[:200]!r}")
        return {model: int(number) for model, number in pairs.items()}


class PublicTlsSettings(ServiceSettings, ExposureSettings):
    """What the ports of REST and gRPC show to clients, and demand of them."""

    group: ClassVar[str] = "Clients' TLS"

    https_cert_file: Path | None = None
    """Certificate of both ports with those of intermediate authorities, PEM; none: they have no TLS.

    It, its key and `client_ca_file` are read again when they change. Ports of metrics and health have no TLS.
    """
    https_key_file: Path | None = None
    """Key of that certificate without a passphrase, PEM."""
    grpc_cert_file: Path | None = None
    """Certificate of the gRPC port, if it is another."""
    grpc_key_file: Path | None = None
    """Key of that."""
    grpc_tls: bool = True
    """Whether the gRPC port has TLS where the REST port does; no: whoever stands before it ends it."""
    client_ca_file: Path | None = None
    """Authorities of which clients of both ports must show a certificate (mutual TLS), PEM; none: they need not."""
    tls_ends_upstream: bool = False
    """Whether what stands before the public ports, an Ingress or a Gateway, ends clients' TLS, and alone reaches them.
    """

    @model_validator(mode="after")
    def _check_certificates(self) -> Self:
        for door in ("https", "grpc"):
            files = {name: getattr(self, name) for name in (f"{door}_cert_file", f"{door}_key_file")}
            missing = [name for name, path in files.items() if path is None]
            if len(missing) == 1:
                raise ValueError(f"{missing[0]} missing: TLS needs a certificate and its key")
        if self.grpc_cert_file is not None and not self.grpc_tls:
            raise ValueError("grpc_cert_file: without effect, because grpc_tls is false")
        if self.client_ca_file is not None and self.https_cert_file is None and self.grpc_cert_file is None:
            raise ValueError("client_ca_file: without effect unless a port has a certificate (https_cert_file)")
        return self

    def https_certificate(self) -> PublicCertificate | None:
        """Return what the REST port shows, None: no TLS; raise ConfigurationError for unreadable files."""
        if self.https_cert_file is None or self.https_key_file is None:
            return None
        return PublicCertificate(self.https_cert_file, self.https_key_file, self.client_ca_file)

    def grpc_certificate(self) -> PublicCertificate | None:
        """Return what the gRPC port shows, None: no TLS; raise ConfigurationError for unreadable files."""
        if self.grpc_cert_file is None or self.grpc_key_file is None:
            return self.https_certificate() if self.grpc_tls else None
        return PublicCertificate(self.grpc_cert_file, self.grpc_key_file, self.client_ca_file, "grpc")


class DeadlineSettings(ServiceSettings):
    """How long a request may take, how often it is tried, and how the gateway ends."""

    group: ClassVar[str] = "Attempts and deadlines"

    max_attempts: int = Field(default=3, ge=1)
    """Nodes on which one generation may be tried. Silence alone counts when no token has come for
    `token_timeout_seconds`: a machine with too much to do seems silent, too."""
    request_timeout_seconds: float = Field(default=600.0, gt=0)
    """Longest time of a request, all attempts together."""
    token_timeout_seconds: float = Field(default=30.0, gt=0)
    """Longest silence of a decode node; before the first token, twice its predicted time is added."""
    router_timeout_seconds: float = Field(default=5.0, gt=0)
    """Time over which a placement is retried while the router is away."""
    drain_pause_seconds: float = Field(default=0.0, ge=0)
    """Time after a stop signal for which everything is served as before, but with `Connection: close`: clients and load
    balancers learn that the gateway goes before it closes a connection. In Kubernetes, the chart's `preStopSeconds`.
    Connections of gRPC, which no answer can end, are at all times made anew after 0.8 of it."""
    drain_seconds: float = Field(default=20.0, ge=0)
    """Time that running requests get after a stop signal; what outlasts it ends with an error of its API."""


class GrpcSettings(ServiceSettings):
    """What the gRPC port does beside serving calls."""

    group: ClassVar[str] = "gRPC"

    grpc_reflection: bool = True
    """Whether the gRPC port tells of its services: tools such as grpcurl need no protos then."""
    grpc_connection_seconds: float = Field(default=0.0, ge=0)
    """Age, a tenth more or less, at which a connection is made anew, perhaps to another gateway; where
    `drain_pause_seconds` is set, never more than 0.8 of it. 0: only where that asks for it."""
    grpc_connection_grace_seconds: float = Field(default=0.0, ge=0)
    """Time that calls on such a connection have to end, longer ones are cut; 0: as long as they take."""
    health_port: int = Field(default=0, ge=0, le=65535)
    """Port of gRPC health alone, without TLS: for probes that show no certificate, as Kubernetes'; 0: none."""

    def grpc_limits(self, max_body_bytes: int, drain_pause_seconds: float) -> PortLimits:
        """Return the bounds of the gRPC port's connections."""
        ages = (self.grpc_connection_seconds, _CONNECTION_SHARE * drain_pause_seconds)
        return PortLimits(
            request_bytes=max_body_bytes,
            response_bytes=_CLIENTS_MESSAGE_BYTES,
            num_streams=_NUM_STREAMS,
            ping_milliseconds=_PING_MILLISECONDS,
            num_ping_strikes=_NUM_PING_STRIKES,
            connection_seconds=min(filter(None, ages), default=0.0),
            connection_grace_seconds=self.grpc_connection_grace_seconds,
            has_gzip=True,
        )


class HttpSettings(ServiceSettings):
    """Bounds of connections to the REST API."""

    group: ClassVar[str] = "HTTP limits"
    max_body_bytes: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Largest request body, in gRPC largest message; more is refused with 413; auto: 8 MiB, or less where memory has no
    room for its tokens: 240 bytes each."""
    max_connections: int = Field(default=8192, ge=1)
    """Connections of REST at once, and never more than three quarters of the files that may be open; more are closed.
    The gRPC port has no such bound: where strangers reach it, what stands before it must have one."""
    max_address_connections: int = Field(default=4096, ge=1)
    """The same of one address; lower it where clients come without a proxy."""
    header_timeout_seconds: float = Field(default=10.0, gt=0)
    """Time from the first byte of a request to the end of its head; more is refused with 408."""
    body_timeout_seconds: float = Field(default=30.0, gt=0)
    """Time from the end of the head to the end of the body; more is refused with 408."""
    keep_alive_timeout_seconds: float = Field(default=75.0, gt=0)
    """Time that a connection without a request is kept."""
    slow_client_timeout_seconds: float = Field(default=30.0, gt=0)
    """Time for which a client may take nothing of an answer before its connection is cut."""
    stream_idle_seconds: float = Field(default=15.0, ge=0)
    """Time without an event after which a stream gets a comment, so that proxies keep it; 0: no comments."""


class GatewaySettings(
    ChatModelSettings,
    GatewayAddressSettings,
    ClientSettings,
    DeadlineSettings,
    GrpcSettings,
    HttpSettings,
    PublicTlsSettings,
    TlsSettings,
):
    """Read from the environment, prefix BATON_GATEWAY_; arguments win."""

    model_config = SettingsConfigDict(env_prefix="BATON_GATEWAY_")

    @property
    def serves_administrators(self) -> bool:
        """Return whether orders of models and exo's cluster API are served: by a key, or to this machine alone."""
        return self.api_keys_file is not None or is_loopback(self.http_host)

    @property
    def is_safe_under_any_name(self) -> bool:
        """Return whether a page whose owner had its name point here could ask nothing, without key or certificate."""
        return self.https_cert_file is not None or self.api_keys_file is not None

    def exposures(self) -> Sequence[str]:
        """Return what clients on other machines could read or use."""
        open_hosts = {name: getattr(self, name) for name in ("http_host", "grpc_host")}
        open_hosts = {name: host for name, host in open_hosts.items() if not is_loopback(host)}
        exposures = []
        has_https = self.https_cert_file is not None
        has_grpc_tls = self.grpc_cert_file is not None or (has_https and self.grpc_tls)
        has_tls = {"http_host": has_https, "grpc_host": has_grpc_tls}
        for name, host in open_hosts.items():
            if not has_tls[name] and not self.tls_ends_upstream:
                exposures.append(
                    f"{name} {host}: keys and prompts would travel in clear: set https_cert_file and https_key_file, "
                    "or tls_ends_upstream where an Ingress ends TLS"
                )
        shows_certificate = {name: self.client_ca_file is not None and has_tls[name] for name in has_tls}
        keyless = [(name, host) for name, host in open_hosts.items() if not shows_certificate[name]]
        if keyless and self.api_keys_file is None:
            name, host = keyless[0]
            exposures.append(f"{name} {host}: whoever reaches it from another machine may ask: set api_keys_file")
        return exposures


def _pairs(field: str, text: str, expected: str) -> Mapping[str, str]:
    """Return the pairs NAME=VALUE of a list with commas; raise ValueError naming the field and what is none."""
    pairs = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, sign, value = map(str.strip, part.partition("="))
        if not (name and sign and value) or name in pairs:
            raise ValueError(f"{field}: expected {expected}, got {part[:200]!r}")
        pairs[name] = value
    return pairs
