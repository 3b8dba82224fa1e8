"""The fast path's server: PrefillService.Prefill on threads of `grpc_sockets`, with errors and spans as everywhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from google.protobuf.message import DecodeError
from opentelemetry import context as otel_context
from opentelemetry import propagate, trace

from baton.errors import BatonError, ConfigurationError, InvalidFieldError
from baton.grpc_sockets.flow_control import StreamEndedError
from baton.grpc_sockets.limits import Limits
from baton.grpc_sockets.server import GrpcSocketServer
from baton.grpc_sockets.server_connection import ServerCall
from baton.grpc_sockets.status import CallError, Code
from baton.kv_transport.kv_services import PREFILL_PATH, ReceivedRequest, parse_request
from baton.rpc.server import host_port
from baton.rpc.status import code_of, details_of
from baton.security.tls import current_identity
from baton.telemetry import names
from baton.telemetry.tracing import tracer

log = logging.getLogger(__name__)

_LIMITS = Limits(message_bytes=16 << 20, num_streams=256)
"""Requests hold token ids, about 3 bytes each; every call that runs has a thread."""


class PrefillHandler(Protocol):
    """Serves prefills; called in a thread of the call's own."""

    def serve(self, request: ReceivedRequest, call: ServerCall) -> None:
        """Send the messages of a prompt's KV stream.

        Raises:
            BatonError: If the request is refused or fails.
        """


class FastServer:
    """Serves one handler, by TLS where the context has an identity. Use: construct, `start`, then `drain` once.

    Args:
        host: Address to listen on.
        port: Port; 0: any free one.
        handler: Computes prompts.
        advertised: Returns host:port under which other nodes reach a port of this one.
    """

    def __init__(
        self, host: str, port: int, handler: PrefillHandler, *, advertised: Callable[[int], str] | None = None
    ) -> None:
        self.advertised_address = ""
        """host:port under which other nodes reach it; empty before `start`."""
        self._advertised = advertised or (lambda port: host_port(host, port))
        self._host = host
        self._wanted_port = port
        identity = current_identity()
        self._server = GrpcSocketServer(
            host,
            port,
            {PREFILL_PATH: _guarded(handler)},
            limits=_LIMITS,
            tls=identity.server_context if identity else None,
        )

    def start(self) -> int:
        """Bind and serve; return the port.

        Raises:
            ConfigurationError: If the address cannot be bound.
        """
        try:
            port = self._server.start()
        except OSError as error:
            raise ConfigurationError(
                f"fast_port: cannot listen on {self._host}:{self._wanted_port}: {error}"
            ) from error
        self.advertised_address = self._advertised(port)
        log.info("fast_path_listening address=%s port=%d", self._host, port)
        return port

    async def drain(self, grace_seconds: float) -> None:
        """Refuse new calls, wait for running ones, cut those that outlast the grace."""
        await asyncio.to_thread(self._server.drain, grace_seconds)


def _guarded(handler: PrefillHandler) -> Callable[[ServerCall], None]:
    def serve(call: ServerCall) -> None:
        carrier = {key: value for key, value in call.metadata.items() if isinstance(value, str)}
        token = otel_context.attach(propagate.extract(carrier))
        try:
            attributes = {**names.rpc_attributes(call.path), names.KV_TRANSPORT: "fast"}
            with tracer().start_as_current_span(
                names.server_span(call.path), kind=trace.SpanKind.SERVER, attributes=attributes
            ):
                handler.serve(_request_of(call), call)
        except BatonError as error:
            raise _call_error(error) from error
        except (StreamEndedError, TimeoutError):
            raise  # of the call itself
        except Exception as error:  # the edge of the call
            log.exception("call_failed")
            raise _call_error(BatonError(f"internal error: {type(error).__name__}")) from error
        finally:
            otel_context.detach(token)

    return serve


def _call_error(error: BatonError) -> CallError:
    return CallError(Code(code_of(error).value[0]), error.message, details_of(error))


def _request_of(call: ServerCall) -> ReceivedRequest:
    try:
        return parse_request(call.request)
    except DecodeError as error:
        raise InvalidFieldError("request", str(error)) from error
