"""Enforces the table of `baton.security.access` on a server: a connection's certificate says who calls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import grpc

from baton.errors import ForbiddenError
from baton.rpc.error_interceptor import Context, Handler, HandlerInterceptor, wrap_handler
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
        return wrap_handler(handler, partial(self._checked, call.method))

    @asynccontextmanager
    async def _checked(self, method: str, context: Context) -> AsyncIterator[None]:
        """Name the caller to whoever serves the call, which has a task of its own, or end the call."""
        names = context.auth_context().get("x509_common_name", ())
        try:
            shown = [name.decode("utf-8", "replace") for name in names]
            caller = caller_of(shown, without_certificate=self._without_certificate, server_name=self._server_name)
            caller.check_may_call(method)
        except ForbiddenError as error:
            await abort(context, error)
        set_caller(caller)
        yield
