"""Gets a join token for a code from a router that nothing is known of yet: what believes it is the code."""

from __future__ import annotations

import asyncio
import ssl
from typing import NamedTuple

import grpc

from baton import __version__
from baton.errors import BatonError, ConfigurationError, OverloadedError, UnavailableError
from baton.internal.v1 import join_service_pb2 as messages
from baton.internal.v1.join_service_pb2_grpc import JoinServiceStub
from baton.rpc.server import host_port
from baton.security.access import DEPLOYMENT
from baton.security.join_code import CodeExchange, JoinCode, wrong_code
from baton.security.join_token import JoinToken, parse_join_token

_CONNECT_SECONDS = 5.0
_ENTER_SECONDS = 20.0


class Applicant(NamedTuple):
    """The machine that wants to join: its worker's id, and where that will listen on the router's network."""

    node_id: str
    host: str
    worker_port: int


async def token_for(code: JoinCode, applicant: Applicant, address: str) -> JoinToken:
    """Return a code's token from a join service; raise AuthenticationError, UnavailableError, ConfigurationError."""
    certificate = await _shown_certificate(address)
    listener = await _listen(applicant)
    try:
        options = (("grpc.ssl_target_name_override", DEPLOYMENT),)
        credentials = grpc.ssl_channel_credentials(certificate)  # not believed: what is sealed by the code is
        async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
            outcome = await _exchanged(channel, code, applicant)
    except grpc.aio.AioRpcError as error:
        raise _told_by_a_stranger(address, error) from error
    finally:
        listener.close()
    if outcome.WhichOneof("outcome") != "token":
        raise ConfigurationError(outcome.problem or "the router gave no token")
    return parse_join_token(outcome.token)


async def _exchanged(channel: grpc.aio.Channel, code: JoinCode, applicant: Applicant) -> messages.EnterOutcome:
    newcomer = messages.Newcomer(
        code_number=code.number, node_id=applicant.node_id, version=__version__, worker_port=applicant.worker_port
    )
    newcomer.clock.GetCurrentTime()
    said = newcomer.SerializeToString()
    exchange = CodeExchange(code.words, said, is_router=False)
    call = JoinServiceStub(channel).Enter(timeout=_ENTER_SECONDS)  # type: ignore[no-untyped-call]
    await call.write(messages.EnterRequest(begin=messages.EnterBegin(newcomer=said, element=exchange.element)))
    proof = exchange.take(_part(await call.read()).element)
    await call.write(messages.EnterRequest(proof=proof))
    await call.done_writing()
    return messages.EnterOutcome.FromString(exchange.unseal(_part(await call.read()).sealed))


def _part(response: object) -> messages.EnterResponse:
    if not isinstance(response, messages.EnterResponse):
        raise wrong_code()
    return response


async def _shown_certificate(address: str) -> bytes:
    host, _, port = address.rpartition(":")
    try:
        asking = asyncio.to_thread(ssl.get_server_certificate, (host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS)
        return (await asking).encode("ascii")
    except ValueError as error:
        raise ConfigurationError(f"address: expected host:port, got {address!r}") from error
    except ssl.SSLError as error:
        raise UnavailableError(f"no join service is at {address}, but something else ({error.reason})") from error
    except OSError as error:
        remedy = f"is that what `baton invite` printed, and is port {port} let through the firewall there?"
        raise UnavailableError(f"no router answers at {address} ({error.strerror or 'timed out'}): {remedy}") from error


async def _listen(applicant: Applicant) -> asyncio.Server:
    """Listen where the worker will: the router tries whether it gets through."""
    try:
        return await asyncio.start_server(lambda _, writer: writer.close(), applicant.host, applicant.worker_port)
    except OSError as error:
        where = host_port(applicant.host, applicant.worker_port)
        raise ConfigurationError(f"{where} cannot be used: {error.strerror}; --port names another") from error


def _told_by_a_stranger(address: str, error: grpc.aio.AioRpcError) -> BatonError:
    """Return what is wrong in this machine's words: nothing proves yet who answers there."""
    if error.code() is grpc.StatusCode.UNAUTHENTICATED:
        return wrong_code()
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return OverloadedError("several wrong codes came from this address: wait for a minute", reason="JOIN_RATE")
    return UnavailableError(f"the router at {address} broke off ({error.code().name})")
