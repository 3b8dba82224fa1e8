"""The processes of `baton up`: which command line and environment each role gets."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from baton.agent.child import ChildSpec
from baton.agent.model_workers import DRAIN_SECONDS, MakeWorker, StartedWorker, slug_of
from baton.cli.local.environment import threads_per_worker, worker_environment
from baton.cli.local.ports import free_ports
from baton.cli.local.topology import SETTINGS_CLASSES, NodeSpec, node_ids
from baton.config.node_tables import WEIGHT_SOURCES
from baton.config.settings import flag_of, load_settings
from baton.errors import ConfigurationError
from baton.gateway.access.api_keys import ApiKeys
from baton.gateway.settings import GatewaySettings
from baton.node.settings import NodeSettings
from baton.rpc.server import host_port
from baton.security.exposure import is_loopback
from baton.weights.model_name import hub_name_of

_JOIN = "join service"
PORT_OFFSETS = {"router": 10, "cache-index": 11, _JOIN: 13}
"""Ports above the REST API's, if free: by default 8010, where commands look, 8011, and 8013, where machines join."""


STOP_SECONDS = 2
"""Time for running requests after Ctrl-C."""


_HEALTH = "health of the gateway"


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """What is common to all processes of one `baton up`."""

    host: str
    http_port: int
    grpc_port: int
    model_dir: Path
    model_name: str
    log_level: str
    lora: str = ""
    """NAME=FOLDER of the adapters that all nodes load, separated by commas."""
    clients: Mapping[str, str] = field(default_factory=dict)
    """Settings of the gateway by field name: who may ask it, and what it shows to them."""
    is_insecure: bool = False
    """Whether other machines may reach all of it."""
    state_dir: Path | None = None
    """Folder for what outlives it; None: nothing does."""
    public_host: str = ""
    """Address of the gateway where clients on other machines reach it; empty: `host`."""
    models_file: Path | None = None
    """What the router takes the models from that are wanted beside that one; None: a file in `lan_dir`."""

    @property
    def lan_dir(self) -> Path | None:
        """Folder by which it opens to machines that join; None: it cannot."""
        return self.state_dir.expanduser() / str(self.http_port) if self.state_dir and is_loopback(self.host) else None

    @property
    def kept_models_file(self) -> Path | None:
        """File by which further models outlive the router; None: they do not."""
        return self.models_file or (self.lan_dir and self.lan_dir / "models.toml")

    @property
    def needs_key(self) -> bool:
        """Whether the gateway asks for API keys."""
        return "api_keys_file" in self.clients

    @property
    def https_cert_file(self) -> str:
        """The REST port's certificate; empty: it speaks HTTP."""
        return self.clients.get("https_cert_file", "")

    @property
    def url(self) -> str:
        """Address of the REST API."""
        return f"http{'s' if self.https_cert_file else ''}://{host_port(self.public_host or self.host, self.http_port)}"


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """One process to start."""

    role: str
    engine: str
    """What computes; empty for services without an engine."""
    address: str
    """host:port of its gRPC server."""
    child: ChildSpec
    """Its command line; `child.name` is the role or the node id."""
    http_url: str = ""
    """Address of its REST API, if it has one."""
    health_port: int = 0
    """Port on which it tells its health, if that is another."""

    @property
    def health_address(self) -> str:
        """host:port on which it tells its health without TLS."""
        return f"{self.address.rpartition(':')[0]}:{self.health_port}" if self.health_port else self.address


def plan_processes(site: LocalCluster, nodes: Sequence[NodeSpec]) -> Sequence[ProcessPlan]:
    """Return processes in order of start, on free ports; raise ConfigurationError if one would be refused."""
    workers = node_ids(_sharing(site, nodes))
    ports = free_ports(
        site.host,
        ("router", "cache-index", _JOIN, _HEALTH, *(node_id for node_id, _ in workers)),
        preferred={key: site.http_port + offset for key, offset in PORT_OFFSETS.items()},
    )
    addresses = {key: host_port(site.host, port) for key, port in ports.items()}
    return (
        _service(site, "cache-index", addresses["cache-index"], {"host": site.host, "port": str(ports["cache-index"])}),
        _service(site, "router", addresses["router"], _router_settings(site, ports, addresses["cache-index"])),
        *(_worker(site, node_id, spec, ports, len(workers)) for node_id, spec in workers),
        _gateway(site, addresses["router"], ports[_HEALTH]),
    )


def _sharing(site: LocalCluster, nodes: Sequence[NodeSpec]) -> Sequence[NodeSpec]:
    """Return nodes that leave each other memory on GPUs; raise ConfigurationError if one would be refused."""
    pairs = [(spec, settings_of(site, spec)) for spec in nodes]
    counts = Counter(gpu for spec, settings in pairs for gpu in [*_gpus_of(settings)] * spec.count)
    shared = []
    for spec, settings in pairs:
        num_nodes = max((counts[gpu] for gpu in _gpus_of(settings)), default=1)
        if num_nodes > 1 and "device_memory_share" not in settings.model_fields_set:
            options = {"device_memory_share": f"{settings.device_memory_share / num_nodes:.4f}", **spec.options}
            spec = replace(spec, options=options)
        shared.append(spec)
    return shared


def _gpus_of(settings: NodeSettings) -> Sequence[str]:
    """Return which GPUs of the machine a node computes on, if it has those."""
    if settings.engine == "mlx":
        return ("metal",)
    cuda = re.fullmatch(r"cuda(?::(\d+))?", settings.device)
    if settings.engine != "torch" or cuda is None:
        return ()
    first = int(cuda[1] or 0)
    return [f"cuda:{index}" for index in range(first, first + settings.tensor_parallel)]


def settings_of(site: LocalCluster, spec: NodeSpec) -> NodeSettings:
    """Return what a node will read, but where others are: by its options, else by the environment that it inherits."""
    return load_settings(SETTINGS_CLASSES[spec.role], _node_flags(site, spec))


def _gateway(site: LocalCluster, router_address: str, health_port: int) -> ProcessPlan:
    host = site.public_host or site.host
    address, flags = host_port(host, site.grpc_port), _gateway_settings(site, router_address, health_port)
    settings = load_settings(GatewaySettings, flags | {"insecure": site.is_insecure})
    settings.https_certificate()
    settings.grpc_certificate()
    if settings.api_keys_file is not None:
        ApiKeys(settings.api_keys_file).load()
    child = ChildSpec("gateway", _command(site, "gateway", flags))
    return ProcessPlan("gateway", "", address, child, site.url, health_port)


def _router_settings(site: LocalCluster, ports: Mapping[str, int], cache_index_address: str) -> Mapping[str, str]:
    joining = {"join_port": str(ports[_JOIN])} if site.lan_dir else {}
    wanted = {"models_file": str(site.kept_models_file)} if site.kept_models_file else {}
    address = {"host": site.host, "port": str(ports["router"])}
    return {**address, "cache_index_address": cache_index_address, **joining, **wanted}


def write_assignment(site: LocalCluster, spec: NodeSpec, plans: Sequence[ProcessPlan]) -> None:
    """Write what machines run that join: a worker of the same model, which the nodes here give, in a node's formats.

    The folder is no longer open to them from an earlier time. Raises ConfigurationError if it cannot be written.
    """
    assert site.lan_dir is not None
    settings = settings_of(site, spec)
    sources = [f":{plan.address.rpartition(':')[2]}" for plan in plans if plan.engine]
    table: dict[str, object] = {"role": "worker", "model_name": site.model_name, WEIGHT_SOURCES: ",".join(sources)}
    table |= {"model_dir": name} if (name := hub_name_of(site.model_dir)) else {}
    table |= {name: getattr(settings, name) for name in ("dtype", "weight_dtype", "block_tokens")}
    lines = [f"{name} = {json.dumps(value)}" for name, value in table.items()]
    try:
        site.lan_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        (site.lan_dir / "address").unlink(missing_ok=True)
        (site.lan_dir / "assignments.toml").write_text("\n".join(("[[node]]", *lines, "")), "utf-8")
    except OSError as error:
        raise ConfigurationError(f"--state-dir: {error}") from error


def _gateway_settings(site: LocalCluster, router_address: str, health_port: int) -> dict[str, str]:
    return {
        "model_dir": str(site.model_dir),
        "model_name": site.model_name,
        "router_address": router_address,
        "http_host": site.public_host or site.host,
        "http_port": str(site.http_port),
        "grpc_host": site.public_host or site.host,
        "grpc_port": str(site.grpc_port),
        "health_port": str(health_port),
        "drain_seconds": str(STOP_SECONDS),
        **site.clients,
    }


def _service(site: LocalCluster, role: str, address: str, settings: Mapping[str, str]) -> ProcessPlan:
    return ProcessPlan(role, "", address, ChildSpec(role, _command(site, role, settings)))


def _worker(
    site: LocalCluster, node_id: str, spec: NodeSpec, ports: Mapping[str, int], num_workers: int
) -> ProcessPlan:
    settings = {
        "host": site.host,
        "port": str(ports[node_id]),
        "node_id": node_id,
        "router_address": host_port(site.host, ports["router"]),
        "cache_index_address": host_port(site.host, ports["cache-index"]),
        "num_threads": str(threads_per_worker(num_workers)),
        "drain_seconds": str(STOP_SECONDS),
        **_node_flags(site, spec),
    }
    child = ChildSpec(node_id, _command(site, spec.role, settings), worker_environment(spec.engine, num_workers))
    return ProcessPlan(spec.role, spec.engine, host_port(site.host, ports[node_id]), child)


def model_workers(site: LocalCluster, nodes: Sequence[NodeSpec], plans: Sequence[ProcessPlan]) -> MakeWorker:
    """Return how this machine starts a worker for a further model: as the first node here, with a part of its own.

    A mock has the size of its own folder, by which it is planned.
    """
    addresses = {plan.role: plan.address for plan in plans}
    options = {name: value for name, value in nodes[0].options.items() if name != "mock_shape"}
    options["drain_seconds"] = str(DRAIN_SECONDS)
    spec = replace(nodes[0], role="worker", count=1, options=options)

    def make(name: str, folder: Path, kv_bytes: int) -> StartedWorker:
        node_id = f"worker-{slug_of(name)}"
        port = free_ports(site.host, (node_id,), preferred={})[node_id]
        own = replace(site, model_dir=folder, model_name=name, lora="")
        ports = {node_id: port} | {role: int(addresses[role].rpartition(":")[2]) for role in ("router", "cache-index")}
        planned = replace(spec, options={"planned_kv_bytes": str(kv_bytes), **spec.options})
        plan = _worker(own, node_id, planned, ports, len(nodes) + 1)
        return StartedWorker(plan.child, plan.address, node_id)

    return make


def _node_flags(site: LocalCluster, spec: NodeSpec) -> Mapping[str, str]:
    """Return the flags of a worker that do not depend on where it and others listen."""
    return {
        "engine": spec.engine,
        "model_dir": str(site.model_dir),
        "model_name": site.model_name,
        **({"lora": site.lora} if site.lora else {}),
        **spec.options,
    }


def _command(site: LocalCluster, role: str, settings: Mapping[str, str]) -> Sequence[str]:
    flags = [f"{flag_of(name)}={value}" for name, value in settings.items()]
    flags += ["--insecure"] if site.is_insecure else []
    flags += [f"--tls-lan-dir={site.lan_dir}"] if site.lan_dir else []
    return (sys.executable, "-m", "baton.cli", "serve", role, *flags, f"--log-level={site.log_level}")
