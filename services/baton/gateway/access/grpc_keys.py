"""API keys of gRPC calls, looked at before a message is taken."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import grpc

from baton.errors import AuthenticationError
from baton.gateway.access.admission import AccessControl, RequestContext
from baton.rpc.error_interceptor import Context, Handler
from baton.rpc.status import abort, code_of


class KeyInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls of Baton's services that show no key, while their messages are still on their way.

    Health and reflection, by which clients learn that there is something to ask, need none.
    """

    def __init__(self, access: AccessControl) -> None:
        self._access = access

    async def intercept_service(  # type: ignore[override]
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Return the handler of the call, or one that refuses it."""
        method, metadata = handler_call_details.method, handler_call_details.invocation_metadata or ()
        handler = await continuation(handler_call_details)
        if handler is not None and method.startswith("/baton."):  # a method that is none would become a metric's label
            try:
                self._access.authenticate({name: value for name, value in metadata if isinstance(value, str)})
            except AuthenticationError as error:
                return self._refusal(method.removeprefix("/"), error)
        return handler

    def _refusal(self, route: str, error: AuthenticationError) -> Handler:
        async def refuse(_requests: object, context: Context) -> None:
            asked = RequestContext(route=route, status=code_of(error).name, error_code=error.reason)
            with self._access.log.watch(asked):
                await abort(context, error)

        return grpc.stream_stream_rpc_method_handler(refuse)
