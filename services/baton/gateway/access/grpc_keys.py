"""API keys of gRPC calls, looked at before a message is taken."""

from __future__ import annotations

from contextvars import ContextVar

import grpc

from baton.errors import AuthenticationError
from baton.gateway.access.admission import AccessControl, RequestContext
from baton.gateway.access.api_keys import ApiKey
from baton.rpc.error_interceptor import Context, Handler, HandlerInterceptor, strings_of
from baton.rpc.status import abort, code_of

SHOWN_KEY: ContextVar[ApiKey] = ContextVar("baton_shown_key")
"""The key that the call which is being served has shown, as `KeyInterceptor` found it."""


class KeyInterceptor(HandlerInterceptor):
    """Refuses calls of Baton's services that show no key, while their messages are still on their way.

    Health and reflection, by which clients learn that there is something to ask, need none.
    """

    def __init__(self, access: AccessControl) -> None:
        self._access = access

    def intercept(self, handler: Handler, call: grpc.HandlerCallDetails) -> Handler:
        """Return the handler, or one that refuses the call."""
        if call.method.startswith("/baton."):  # and is one: others would become labels of metrics
            try:
                SHOWN_KEY.set(self._access.authenticate(strings_of(call.invocation_metadata)))
            except AuthenticationError as error:
                return self._refusal(call.method.removeprefix("/"), error)
        return handler

    def _refusal(self, route: str, error: AuthenticationError) -> Handler:
        async def refuse(_requests: object, context: Context) -> None:
            asked = RequestContext(route=route, status=code_of(error).name, error_code=error.reason)
            with self._access.log.watch(asked):
                await abort(context, error)

        return grpc.stream_stream_rpc_method_handler(refuse)
