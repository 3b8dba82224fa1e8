"""What gRPC's own tools ask of a server: its health, all of it at once too, and its services, in both versions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

from baton.internal.v1.health_list_pb2 import HealthList, HealthState
from baton.rpc.error_interceptor import Context, Handler

_HEALTH = "grpc.health.v1.Health"
_REFLECTION = "grpc.reflection.v1.ServerReflection"
"""Its messages are those of v1alpha, byte for byte; grpcio has v1alpha alone."""
_STATUS = health_pb2.HealthCheckResponse


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc] # of a package without types
    """grpc.health.v1 with `List`, which grpcio's servicer lacks; that one also forgets watchers when others leave."""

    def __init__(self) -> None:
        self._statuses: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._is_stopped = False
        self._is_watched = True

    def set(self, name: str, *, is_serving: bool) -> None:
        """Set the health of a service, unless all are stopped; the empty name is the server as a whole."""
        if not self._is_stopped:
            self._statuses[name] = _STATUS.SERVING if is_serving else _STATUS.NOT_SERVING
            self._tell()

    def stop(self) -> None:
        """Report NOT_SERVING for all, whatever is set afterwards."""
        self._is_stopped = True
        self._statuses = dict.fromkeys(self._statuses, _STATUS.NOT_SERVING)
        self._tell()

    def end_watches(self) -> None:
        """End the calls of those who watch: a server that lets its calls finish would wait for them."""
        self._is_watched = False
        self._tell()

    def serve_on(self, server: grpc.aio.Server) -> None:
        """Add the service to a server that has not started."""
        health_pb2_grpc.add_HealthServicer_to_server(self, server)
        listing: Handler = grpc.unary_unary_rpc_method_handler(self._list)  # bytes to bytes
        server.add_generic_rpc_handlers((_only(_HEALTH, "List", listing),))

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> object:  # noqa: N802
        """Tell the health of a service."""
        if request.service not in self._statuses:
            names = ", ".join(map(repr, self._statuses))
            await context.abort(grpc.StatusCode.NOT_FOUND, f"service: expected one of {names}")
        return _STATUS(status=self._statuses[request.service])

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> AsyncIterator[object]:  # noqa: ARG002, N802
        """Tell the health of a service, and whenever it changes."""
        told = None
        while True:
            changed, status = self._changed, self._statuses.get(request.service, _STATUS.SERVICE_UNKNOWN)
            if status != told:
                yield _STATUS(status=status)
                told = status
            elif self._is_watched:
                await changed.wait()
            else:
                return

    async def _list(self, request: object, context: object) -> bytes:  # noqa: ARG002
        states = {name: HealthState(status=status) for name, status in self._statuses.items()}
        return HealthList(statuses=states).SerializeToString()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def reflect(server: grpc.aio.Server, names: Sequence[str]) -> None:
    """Add reflection, v1 and v1alpha, on these services, health and itself to a server that has not started."""
    names = (*names, _HEALTH, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    handler: Handler = grpc.stream_stream_rpc_method_handler(
        ReflectionServicer(service_names=names).ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((_only(_REFLECTION, "ServerReflectionInfo", handler),))


def _only(service: str, method: str, handler: Handler) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(service, {method: handler})
