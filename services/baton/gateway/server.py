"""Starts a gateway, runs it until it is asked to stop, and drains it."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

from baton.config.container_limits import machine_memory, usable_memory
from baton.config.settings import process_index
from baton.gateway.access.admission import AccessControl, AccessLog, Admission, Deadlines, RecentRefusals
from baton.gateway.access.api_keys import ApiKeys
from baton.gateway.access.cors import Cors
from baton.gateway.access.hosts import Hosts
from baton.gateway.access.key_limits import KeyLimits
from baton.gateway.access.tenants import Places, TenantSalts
from baton.gateway.api.exo.bench import BenchEndpoint
from baton.gateway.api.exo.endpoints import ExoApi
from baton.gateway.api.exo.instances import Instances
from baton.gateway.api.grpc_api.servicer import SERVICE_NAME, GenerationServicer, KeyInterceptor
from baton.gateway.api.model_orders import ModelOrders
from baton.gateway.api.openai.errors import http_error_body
from baton.gateway.api.pages import Pages
from baton.gateway.api.rest_api import RestApi
from baton.gateway.api.routes import exo_endpoints, model_endpoints, page_endpoints, ui_endpoints
from baton.gateway.api.ui.page import Ui
from baton.gateway.cluster.node_links import NodeLinks
from baton.gateway.cluster.quarantine import Quarantine
from baton.gateway.cluster.router_client import RouterClient
from baton.gateway.cluster.token_stream import TokenStreams
from baton.gateway.generation.generator import TextGenerator
from baton.gateway.generation.observation import Journal
from baton.gateway.generation.preparation import Preparation
from baton.gateway.http.connection import HttpLimits
from baton.gateway.http.content_coding import BodyInflater
from baton.gateway.http.messages import HeldBytes
from baton.gateway.http.server import HttpServer, open_files_limit, raise_open_files_limit
from baton.gateway.memory import memory_of
from baton.gateway.models.catalog import CatalogSettings, ModelCatalog
from baton.gateway.models.entry import PinnedModel
from baton.gateway.models.served_model import open_text
from baton.gateway.models.tokenizer_store import TokenizerStore
from baton.gateway.settings import GatewaySettings
from baton.rpc.process import freeze_loaded_objects
from baton.rpc.server import GrpcServer, PublicPort, host_port, split_addresses, wait_for_stop_signal
from baton.security.exposure import is_loopback
from baton.telemetry import names
from baton.telemetry.metrics import Metrics
from baton.telemetry.metrics_server import serving_metrics
from baton.telemetry.prometheus import Scrape, scraped_meter
from baton.text.output_format import AUTO
from baton.text.tokenizer import context_tokens_of
from baton.v1.generation_service_pb2_grpc import add_GenerationServiceServicer_to_server

log = logging.getLogger(__name__)


_FAREWELL_SECONDS = 1.0
"""Time to tell clients that their answers end here, once the grace is over."""
_ALIVE, _STARTED = "liveness", "started"
"""Names under which health says that the process runs, and that requests would once have been taken: by these, a pod is
started again and a rollout goes on. Under the others it says what `/ready` says; where a router is away, all gateways
would leave their Service by that, and clients meet refused connections instead of errors that say why."""


class RunningGateway(NamedTuple):
    """A gateway that serves."""

    http_port: int
    grpc_port: int


async def serve(settings: GatewaySettings) -> None:
    """Run a gateway until SIGTERM or SIGINT, then drain it; raise ConfigurationError if settings forbid it."""
    raise_open_files_limit()
    async with run_gateway(settings):
        freeze_loaded_objects()
        await wait_for_stop_signal()


@asynccontextmanager
async def run_gateway(settings: GatewaySettings) -> AsyncIterator[RunningGateway]:
    """Run a gateway for as long as the context lasts; leaving it drains."""
    with scraped_meter() as (meter, scrape), _own_metrics(settings, scrape):
        async with NodeLinks() as links, _run(settings, links, Metrics(meter), scrape) as running:
            yield running


@asynccontextmanager
async def _run(
    settings: GatewaySettings, links: NodeLinks, metrics: Metrics, scrape: Scrape
) -> AsyncIterator[RunningGateway]:
    keys = _api_keys(settings)
    pinned = _pinned(settings)
    router = RouterClient(settings.router_address, timeout_seconds=settings.router_timeout_seconds)
    clock = asyncio.get_running_loop().time
    instances = Instances(clock)
    follow = CatalogSettings(
        settings.node_poll_seconds,
        settings.model_wait_seconds,
        settings.model_forget_seconds,
        settings.aliases_of_models,
        tells_causes=settings.api_keys_file is None,
    )
    store = _tokenizers(settings)
    catalog = ModelCatalog(router, store.open, follow, pinned=pinned, on_nodes=instances.note_nodes)
    memory = memory_of(settings, usable_memory(), machine_memory())
    held, tenants = HeldBytes(memory.held_bytes), TenantSalts(settings.tenant_secret_file)
    preparation = Preparation(catalog, tenants, num_threads=settings.tokenizer_threads)
    quarantine = Quarantine(clock, metrics)
    streams = TokenStreams(
        router,
        links.follow,
        metrics,
        quarantine,
        max_attempts=settings.max_attempts,
        token_timeout_seconds=settings.token_timeout_seconds,
        request_timeout_seconds=settings.request_timeout_seconds,
    )
    journal = Journal(clock)
    generator = TextGenerator(preparation, streams, metrics, journal)
    try:
        deadlines, access_log = Deadlines(settings.request_timeout_seconds), AccessLog(metrics, clock)
        admission = _admission(settings, catalog, metrics, clock)
        access = AccessControl(keys, admission, deadlines, access_log, RecentRefusals(clock))
        started = int(time.time())
        pages = Pages(catalog, None if settings.is_shared else scrape, created_seconds=started)
        endpoints = [*model_endpoints(generator, BenchEndpoint(instances)), *page_endpoints(pages)]
        if settings.serves_administrators:
            endpoints += ModelOrders(router).endpoints()
            exo = ExoApi(router, catalog, instances, quarantine, created_seconds=started, is_shared=settings.is_shared)
            endpoints += exo_endpoints(exo)
        if settings.ui:
            ui = Ui(router, journal, quarantine, catalog, admission, clock, _exposures(settings))
            endpoints += ui_endpoints(ui, can_invite=settings.serves_administrators)
        pages.describe(endpoints, is_strict=settings.strict)
        origins = split_addresses(settings.cors_allow_origins)
        inflater = BodyInflater(held, memory.max_body_bytes)
        cors, scheme = Cors(origins) if origins else None, "https" if settings.https_cert_file else "http"
        hosts = Hosts(split_addresses("*" if settings.is_safe_under_any_name else settings.allowed_hosts))
        rest = RestApi(endpoints, access, cors, hosts, inflater, is_strict=settings.strict, scheme=scheme)
        address = host_port(settings.grpc_host, settings.grpc_port)
        servicer = GenerationServicer(generator, catalog, access, held, address)
        limits = _http_limits(settings, memory.max_body_bytes)
        async with _serving(settings, rest, servicer, catalog, access, limits=limits, held=held) as running:
            yield running
    finally:
        preparation.close()
        await router.close()


@asynccontextmanager
async def _serving(
    settings: GatewaySettings,
    rest: RestApi,
    servicer: GenerationServicer,
    catalog: ModelCatalog,
    access: AccessControl,
    *,
    limits: HttpLimits,
    held: HeldBytes,
) -> AsyncIterator[RunningGateway]:
    grpc_server = GrpcServer(
        host_port(settings.grpc_host, settings.grpc_port),
        public=PublicPort(
            settings.grpc_certificate(), settings.health_port, settings.grpc_reflection, [KeyInterceptor(access)]
        ),
        is_shared=settings.is_shared,
        limits=settings.grpc_limits(limits.max_body_bytes, settings.drain_pause_seconds),
    )
    grpc_server.add(
        SERVICE_NAME,
        lambda server: add_GenerationServiceServicer_to_server(servicer, server),  # type: ignore[no-untyped-call]
    )
    certificate = settings.https_certificate()
    async with HttpServer(rest, http_error_body, limits, held) as http_server:
        running = RunningGateway(
            http_port=await http_server.start(
                settings.http_host,
                settings.http_port,
                is_shared=settings.is_shared,
                tls=certificate.context if certificate else None,
            ),
            grpc_port=await grpc_server.start(is_serving=False),
        )
        _tell_health(catalog, grpc_server)
        async with asyncio.TaskGroup() as tasks:
            watching = [tasks.create_task(catalog.run()), tasks.create_task(access.watch_keys())]
            try:
                yield running
            finally:
                catalog.close("the gateway is shutting down")
                pause_seconds = settings.drain_pause_seconds
                asyncio.get_running_loop().call_later(pause_seconds + settings.drain_seconds, access.deadlines.cut)
                # Longer than the grace: what outlasts it is told so before its connection is cut.
                seconds = settings.drain_seconds + _FAREWELL_SECONDS
                await asyncio.gather(
                    http_server.drain(seconds, pause_seconds=pause_seconds),
                    grpc_server.drain(seconds, pause_seconds=pause_seconds),
                )
                for task in watching:
                    task.cancel()


def _tell_health(catalog: ModelCatalog, grpc_server: GrpcServer) -> None:
    """Have health say what `/ready` says, and beside it whether the process runs and has once been ready."""
    grpc_server.set_health(_ALIVE, is_serving=True)
    grpc_server.set_health(_STARTED, is_serving=False)

    def tell(problem: str) -> None:
        grpc_server.set_serving(not problem)
        if not problem:
            grpc_server.set_health(_STARTED, is_serving=True)

    catalog.follow(tell)


def _pinned(settings: GatewaySettings) -> PinnedModel | None:
    if settings.model_dir is None:
        return None
    formats = {"tool_format": settings.tool_call_parser, "reasoning_format": settings.reasoning_parser}
    text = open_text(settings.model_dir, settings.served_name, **formats)
    return PinnedModel(settings.served_name, text, context_tokens_of(settings.model_dir))


def _tokenizers(settings: GatewaySettings) -> TokenizerStore:
    formats = (settings.tool_call_parser, settings.reasoning_parser) if settings.model_dir is None else (AUTO, AUTO)
    folder = Path(settings.tokenizer_cache_dir).expanduser()
    return TokenizerStore(folder, tool_format=formats[0], reasoning_format=formats[1])


def _api_keys(settings: GatewaySettings) -> ApiKeys | None:
    if settings.api_keys_file is None:
        return None
    keys = ApiKeys(settings.api_keys_file, earliest_priority=settings.key_earliest_priority)
    keys.load()
    return keys


def _admission(
    settings: GatewaySettings, catalog: ModelCatalog, metrics: Metrics, clock: Callable[[], float]
) -> Admission:
    requests_per_minute, tokens_per_minute = settings.key_requests_per_minute, settings.key_tokens_per_minute
    limits = None
    if requests_per_minute or tokens_per_minute:
        limits = KeyLimits(requests_per_minute=requests_per_minute, tokens_per_minute=tokens_per_minute, clock=clock)
    max_of_model, max_of_key = settings.limits_of_models, settings.key_max_concurrent_requests

    def make_places(model: str) -> Places:
        num_places = max_of_model.get(model, settings.max_concurrent_requests)
        labels = {names.GEN_AI_REQUEST_MODEL: model}
        count = partial(metrics.add_current, names.GATEWAY_MODEL_REQUESTS, attributes=labels)
        return Places(num_places, 0, clock, count)

    return Admission(make_places, Places(sys.maxsize, max_of_key, clock), limits, catalog.root_of)


def _exposures(settings: GatewaySettings) -> Sequence[str]:
    """Return what is open to others: public ports, and what the gateway and those behind it say to each other."""
    hosts = [address.rpartition(":")[0] for address in split_addresses(settings.router_address)]
    if all(map(is_loopback, hosts)) or settings.tls_identity() is not None:
        return settings.exposures()
    return (*settings.exposures(), f"router_address {settings.router_address}: it is asked without TLS")


def _own_metrics(settings: GatewaySettings, scrape: Scrape) -> AbstractContextManager[object]:
    """Serve this process's metrics, if a port is set for them: of several that share theirs, each is scraped alone."""
    port = settings.metrics_port + max(0, process_index())
    return serving_metrics(scrape, settings.http_host, port) if settings.metrics_port else nullcontext()


def _http_limits(settings: GatewaySettings, max_body_bytes: int) -> HttpLimits:
    """Return the bounds of a connection that the settings set."""
    return HttpLimits(
        max_body_bytes=max_body_bytes,
        header_timeout_seconds=settings.header_timeout_seconds,
        body_timeout_seconds=settings.body_timeout_seconds,
        keep_alive_timeout_seconds=settings.keep_alive_timeout_seconds,
        slow_client_timeout_seconds=settings.slow_client_timeout_seconds,
        stream_idle_seconds=settings.stream_idle_seconds,
        max_connections=min(settings.max_connections, open_files_limit() * 3 // 4),
        max_address_connections=settings.max_address_connections,
    )
