"""One question to the router from the command line."""

from __future__ import annotations

import asyncio
import http.client
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, TypeAlias, TypeVar

import grpc
import typer
from pydantic_settings import SettingsConfigDict

from baton.config.settings import load_settings
from baton.errors import UnavailableError
from baton.internal.v1 import router_service_pb2_grpc
from baton.rpc.channel import open_channel
from baton.rpc.status import error_from_rpc, error_info
from baton.security.tls import TlsSettings, secured_by

DEFAULT_ROUTER = "127.0.0.1:8010"
"""Where `baton up` puts the router unless the port is taken."""
CALL_SECONDS = 5.0
"""Time for the answer."""
_LOOK_SECONDS = 1.0


class CommandTlsSettings(TlsSettings):
    """Who asks where connections have TLS: BATON_TLS_CERT_FILE, BATON_TLS_KEY_FILE and BATON_TLS_CA_FILE."""

    model_config = SettingsConfigDict(env_prefix="BATON_")


AnswerT = TypeVar("AnswerT")
RouterOption: TypeAlias = Annotated[
    str, typer.Option("--router", help="host:port of it.", envvar="BATON_ROUTER_ADDRESS")
]


def ask_router(
    address: str, question: Callable[[router_service_pb2_grpc.RouterServiceStub], Awaitable[AnswerT]]
) -> AnswerT:
    """Return the router's answer; raise ConfigurationError if TLS files lack, BatonError with its address."""
    stub_of = router_service_pb2_grpc.RouterServiceStub
    return call_router(address, lambda channel: question(stub_of(channel)))  # type: ignore[no-untyped-call]


def call_router(address: str, question: Callable[[grpc.aio.Channel], Awaitable[AnswerT]]) -> AnswerT:
    """Return the answer of any service where the router is; raises what `ask_router` does."""

    async def ask() -> AnswerT:
        async with open_channel(address) as channel:
            return await question(channel)

    try:
        with secured_by(load_settings(CommandTlsSettings, {}).tls_identity()):
            return asyncio.run(ask())
    except grpc.aio.AioRpcError as error:
        cause = error_from_rpc(error)
        hint = f"; {_remedy(address, os.environ)}" if error_info(error) is None else ""
        raise UnavailableError(f"router at {address}: {cause.message}{hint}", reason=cause.reason) from error


def _speaks_http(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=_LOOK_SECONDS)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status > 0
    except (OSError, http.client.HTTPException, OverflowError):
        return False
    finally:
        connection.close()


def _remedy(address: str, environment: Mapping[str, str]) -> str:
    """Return what to look at where nobody answers, or somebody else does."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        return "expected host:port"
    if _speaks_http(host.strip("[]"), int(port)):
        return f"the REST API is there; the router's port is another, by default {DEFAULT_ROUTER}"
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "is its pod ready, and may this one connect to it? `kubectl get pods,networkpolicies`"
    return "is `baton up` running there?"
