"""Servers: health, reflection, error mapping, and a drain that lets running calls finish."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import grpc

from baton.errors import ConfigurationError
from baton.rpc.access_interceptor import AccessInterceptor
from baton.rpc.channel import MAX_MESSAGE_BYTES
from baton.rpc.compression import OPTIONS, InflatingInterceptor
from baton.rpc.error_interceptor import ErrorInterceptor
from baton.rpc.introspection import Health, reflect
from baton.rpc.trace_interceptors import server_interceptors
from baton.security.access import Party
from baton.security.tls import PublicCertificate, current_identity


@dataclass(frozen=True, slots=True, kw_only=True)
class PortLimits:
    """Bounds of a server's connections; the defaults are those among processes of one deployment."""

    request_bytes: int = MAX_MESSAGE_BYTES
    response_bytes: int = MAX_MESSAGE_BYTES
    num_streams: int = 4096
    """Calls of one connection at once; more wait at the client."""
    ping_milliseconds: int = 500
    """Least time between two pings of a client that is sent nothing meanwhile; one that comes earlier is a strike."""
    num_ping_strikes: int = 0
    """Strikes after which a connection ends; 0: it does not."""
    connection_seconds: float = 0.0
    """Age, a tenth more or less, at which a connection's client is told, by GOAWAY, to ask elsewhere; 0: never before
    the server stops, where calls that are on their way are lost."""
    connection_grace_seconds: float = 0.0
    """Time that what runs on such a connection has from then on; 0: as long as it takes."""
    has_gzip: bool = False
    """Whether messages may be compressed: answers for clients that take it, requests as far as `request_bytes` goes."""

    def options(self) -> Sequence[tuple[str, int]]:
        """Return them as arguments of a server of grpcio."""
        arguments = {
            "grpc.max_receive_message_length": self.request_bytes,
            "grpc.max_send_message_length": self.response_bytes,
            "grpc.max_concurrent_streams": self.num_streams,
            "grpc.http2.min_ping_interval_without_data_ms": self.ping_milliseconds,
            "grpc.http2.max_ping_strikes": self.num_ping_strikes,
            "grpc.keepalive_permit_without_calls": 1,  # else, of a connection without calls, a ping in two hours
        }
        if self.connection_seconds:
            arguments["grpc.max_connection_age_ms"] = round(self.connection_seconds * 1000)
            if self.connection_grace_seconds:
                arguments["grpc.max_connection_age_grace_ms"] = round(self.connection_grace_seconds * 1000)
        return tuple(arguments.items())


AMONG_OWN = PortLimits()
"""Of servers that processes of one deployment call."""

log = logging.getLogger(__name__)

_OPTIONS = (("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 5_000))


class PublicPort(NamedTuple):
    """What is else than among processes of one deployment where clients from outside call."""

    certificate: PublicCertificate | None = None
    """Shown to clients; None: connections are plain."""
    health_port: int = 0
    """Port on which health is served without TLS; 0: none."""
    has_reflection: bool = True
    interceptors: Sequence[grpc.aio.ServerInterceptor] = ()
    """See calls before any other, and may refuse them before their messages are taken."""


class GrpcServer:
    """A gRPC server with grpc.health.v1, reflection and error mapping.

    Use: construct, `add` services, `start`, then `drain` once. The health of a service is SERVING from `start` (or from
    `set_serving`) until `drain`.

    `address`: host:port to listen on. `public`: set if clients outside the deployment call it: then it has no TLS of
    the deployment's own. `is_shared`: whether other processes listen on the same port. `demands_certificate`: whether,
    with TLS, clients must show a certificate of the deployment. Where they need not, health is served on this port
    alone. `limits`: of its connections.
    """

    def __init__(
        self,
        address: str,
        *,
        public: PublicPort | None = None,
        is_shared: bool = False,
        demands_certificate: bool = True,
        limits: PortLimits = AMONG_OWN,
    ) -> None:
        self._address = address
        self._public = public or PublicPort()
        self._identity = None if public else current_identity()
        self._demands_certificate = demands_certificate
        self._health_port = self._public.health_port
        if self._identity and demands_certificate:
            self._health_port = self._identity.health_port
        self._probed = grpc.aio.server() if self._health_port else None
        self._options = (("grpc.so_reuseport", int(is_shared)), *limits.options(), *_OPTIONS)
        self._limits = limits
        opens_later = self._identity is not None and self._identity.lan_file is not None
        self._server = self._made([] if opens_later else self._access_interceptors(is_public=public is not None))
        self._outside: grpc.aio.Server | None = None
        """Listens beyond loopback, from when that is opened."""
        self._opening: asyncio.Task[None] | None = None
        self._opens_later = opens_later
        self._health = Health()
        self._registers: list[Callable[[grpc.aio.Server], None]] = []
        self._names: list[str] = []
        self.port = 0

    def _made(self, access: Sequence[grpc.aio.ServerInterceptor]) -> grpc.aio.Server:
        interceptors = (*self._public.interceptors, *server_interceptors(self._address), *access, ErrorInterceptor())
        options, limits = self._options, self._limits
        if limits.has_gzip:
            options, interceptors = (*options, *OPTIONS), (*interceptors, InflatingInterceptor(limits.request_bytes))
        return grpc.aio.server(options=options, interceptors=interceptors)

    def _access_interceptors(self, *, is_public: bool) -> Sequence[grpc.aio.ServerInterceptor]:
        """Return what tells callers apart; nothing does without TLS, where none has a name."""
        if is_public:
            return (AccessInterceptor(Party.CLIENT),)
        if self._identity is None:
            return ()
        return (AccessInterceptor(None if self._demands_certificate else Party.JOINER, self._identity.server_name),)

    def add(self, service_name: str, register: Callable[[grpc.aio.Server], None]) -> None:
        """Add a service. `service_name` is the full name, e.g. "baton.internal.v1.RouterService"."""
        register(self._server)
        self._registers.append(register)
        self._names.append(service_name)

    async def start(self, *, is_serving: bool = True) -> int:
        """Bind and serve, or raise ConfigurationError; return the port."""
        self._health.serve_on(self._server)
        if self._public.has_reflection:
            reflect(self._server, self._names)
        try:
            if not self._opens_later and (credentials := self._credentials()):
                self.port = self._server.add_secure_port(self._address, credentials)
            else:
                self.port = self._server.add_insecure_port(self._address)
        except RuntimeError as error:
            raise ConfigurationError(f"cannot listen on {self._address}: {error}") from error
        await self._start_probed()
        self.set_serving(is_serving)
        await self._server.start()
        log.info("grpc_listening address=%s port=%d services=%s", self._address, self.port, ",".join(self._names))
        if self._opens_later:
            self._opening = asyncio.create_task(self._open_outside())
        return self.port

    async def _open_outside(self) -> None:
        """Serve the same beyond loopback, on the same port and by TLS, from when that is opened."""
        assert self._identity is not None
        address = f"{await self._identity.opened()}:{self.port}"
        outside = self._made(self._access_interceptors(is_public=False))
        for register in self._registers:
            register(outside)
        self._health.serve_on(outside)
        try:
            outside.add_secure_port(address, self._identity.server_credentials())
            await outside.start()
        except (RuntimeError, ConfigurationError) as error:
            log.error("lan_not_served address=%s cause=%r", address, str(error))
            return
        self._outside = outside
        log.info("lan_served address=%s services=%s", address, ",".join(self._names))

    def _credentials(self) -> grpc.ServerCredentials | None:
        if self._identity:
            return self._identity.server_credentials(demands_certificate=self._demands_certificate)
        return self._public.certificate.server_credentials() if self._public.certificate else None

    async def _start_probed(self) -> None:
        """Serve health, and nothing else, without TLS to those who have no certificate: Kubernetes' probes."""
        if self._probed:
            address = f"{self._address.rpartition(':')[0]}:{self._health_port}"
            self._health.serve_on(self._probed)
            try:
                self._probed.add_insecure_port(address)
            except RuntimeError as error:
                raise ConfigurationError(f"cannot listen on {address} for health: {error}") from error
            await self._probed.start()

    def set_serving(self, is_serving: bool, *, is_alive: bool | None = None) -> None:
        """Set the health of all services, and of the server as a whole, whose name is empty.

        `is_alive`: the server as a whole is sound, None: the same. One that will serve again need not be started again.
        """
        healths = dict.fromkeys(self._names, is_serving) | {"": is_serving if is_alive is None else is_alive}
        for name, is_well in healths.items():
            self.set_health(name, is_serving=is_well)

    def set_health(self, name: str, *, is_serving: bool) -> None:
        """Set the health that is told under another name than a service's."""
        self._health.set(name, is_serving=is_serving)

    async def drain(self, grace_seconds: float, *, pause_seconds: float = 0.0) -> None:
        """Report NOT_SERVING, refuse new calls, wait for running ones, cut those that outlast the grace.

        For `pause_seconds` calls are still taken: connections that grow old meanwhile are made anew elsewhere.
        """
        self._health.stop()
        await asyncio.sleep(pause_seconds)
        self._health.end_watches()
        if self._opening:
            self._opening.cancel()
        await asyncio.gather(*(each.stop(grace_seconds) for each in (self._server, self._outside) if each))
        if self._probed:
            await self._probed.stop(0)
        log.info("grpc_stopped port=%d", self.port)


async def wait_for_stop_signal() -> None:
    """Return when the process is asked to stop (SIGTERM or SIGINT)."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)


def host_port(host: str, port: int) -> str:
    """Return host:port, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_addresses(text: str) -> Sequence[str]:
    """Return the comma-separated host:port parts of a setting."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
