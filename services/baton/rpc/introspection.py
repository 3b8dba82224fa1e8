"""What gRPC's own tools ask of a server: its health, all of it at once too, and its services, in both versions."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection, reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

from baton.internal.v1.health_list_pb2 import HealthList, HealthState
from baton.rpc.error_interceptor import Handler

_HEALTH = "grpc.health.v1.Health"
_REFLECTION = "grpc.reflection.v1.ServerReflection"
"""Its messages are those of v1alpha, byte for byte; grpcio has v1alpha alone."""


class Health:
    """grpc.health.v1 with `List`, which grpcio's servicer lacks."""

    def __init__(self) -> None:
        self._servicer = HealthServicer()
        self._statuses: dict[str, int] = {}

    async def set(self, name: str, *, is_serving: bool) -> None:
        """Set the health of a service; the empty name is the server as a whole."""
        status = health_pb2.HealthCheckResponse
        self._statuses[name] = status.SERVING if is_serving else status.NOT_SERVING
        await self._servicer.set(name, self._statuses[name])

    async def stop(self) -> None:
        """Report NOT_SERVING for all, whatever is set afterwards."""
        self._statuses = dict.fromkeys(self._statuses, health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._servicer.enter_graceful_shutdown()

    def serve_on(self, server: grpc.aio.Server) -> None:
        """Add the service to a server that has not started."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
        listing: Handler = grpc.unary_unary_rpc_method_handler(self._list)  # bytes to bytes
        server.add_generic_rpc_handlers((_only(_HEALTH, "List", listing),))

    async def _list(self, request: object, context: object) -> bytes:  # noqa: ARG002
        states = {name: HealthState(status=status) for name, status in self._statuses.items()}
        return HealthList(statuses=states).SerializeToString()


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
