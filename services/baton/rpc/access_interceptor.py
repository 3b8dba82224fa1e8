"""Enforces the table of `baton.security.access` on a server: a connection's certificate says who calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import grpc

from baton.errors import ForbiddenError
from baton.rpc.error_interceptor import Behavior, Context, Handler, HandlerInterceptor, StreamBehavior, wrap_handler
from baton.rpc.status import abort
from baton.security.access import DEPLOYMENT, Party, caller_of, set_caller


class AccessInterceptor(HandlerInterceptor):
    """Ends calls of those who may not make them with PERMISSION_DENIED, before anything of the request is looked at.

    `without_certificate` is what callers are if the server demands none; None: it does.
    """

    def __init__(self, without_certificate: Party | None, server_name: str = DEPLOYMENT) -> None:
        self._without_certificate = without_certificate
        self._server_name = server_name

    def intercept(self, handler: Handler, call: grpc.HandlerCallDetails) -> Handler:
        """Return the handler behind a check of its caller."""
        check = partial(self._check, call.method)
        return wrap_handler(handler, partial(_guard, check=check), partial(_guard_stream, check=check))

    async def _check(self, method: str, context: Context) -> None:
        """Name the caller to whoever serves the call, which has a task of its own, or end the call."""
        names = context.auth_context().get("x509_common_name", ())
        try:
            shown = [name.decode("utf-8", "replace") for name in names]
            caller = caller_of(shown, without_certificate=self._without_certificate, server_name=self._server_name)
            caller.check_may_call(method)
        except ForbiddenError as error:
            await abort(context, error)
        set_caller(caller)


def _guard(behavior: Behavior, check: Callable[[Context], Awaitable[None]]) -> Behavior:
    async def guarded(request: object, context: Context) -> object:
        await check(context)
        return await behavior(request, context)

    return guarded


def _guard_stream(behavior: StreamBehavior, check: Callable[[Context], Awaitable[None]]) -> StreamBehavior:
    async def guarded(request: object, context: Context) -> AsyncIterator[object]:
        await check(context)
        async for response in behavior(request, context):
            yield response

    return guarded
