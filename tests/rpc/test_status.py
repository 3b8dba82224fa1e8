"""Errors over a real channel: class, reason, message and metadata arrive as they were raised."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import grpc
import pytest

from baton import errors
from baton.internal.v1 import (
    decode_service_pb2,
    decode_service_pb2_grpc,
    prefill_service_pb2,
    prefill_service_pb2_grpc,
    router_service_pb2,
    router_service_pb2_grpc,
)
from baton.rpc.channel import open_channel
from baton.rpc.server import GrpcServer
from baton.rpc.status import DOMAIN, error_from_rpc, error_info

ERRORS: list[tuple[errors.BatonError, grpc.StatusCode]] = [
    (errors.InvalidFieldError("top_p", "expected above 0"), grpc.StatusCode.INVALID_ARGUMENT),
    (errors.AuthenticationError("no API key"), grpc.StatusCode.UNAUTHENTICATED),
    (errors.ForbiddenError("node mac-1 may not call Place"), grpc.StatusCode.PERMISSION_DENIED),
    (errors.NotFoundError("no such model"), grpc.StatusCode.NOT_FOUND),
    (errors.NotFoundError("no such node", reason="NODE_NOT_FOUND"), grpc.StatusCode.NOT_FOUND),
    (errors.MismatchError("layers", "4", "5"), grpc.StatusCode.FAILED_PRECONDITION),
    (errors.MismatchError("model_id", "a", "b", reason="MODEL_MISMATCH"), grpc.StatusCode.FAILED_PRECONDITION),
    (errors.OutOfMemoryError("too long"), grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.OverloadedError("later"), grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.UnavailableError("away"), grpc.StatusCode.UNAVAILABLE),
    (errors.UnavailableError("going", reason="DRAINING"), grpc.StatusCode.UNAVAILABLE),
    (errors.AttemptReusedError("again"), grpc.StatusCode.ABORTED),
    (errors.SupersededError("newer"), grpc.StatusCode.ABORTED),
    (errors.StreamBrokenError("gap", metadata={"node": "n"}), grpc.StatusCode.DATA_LOSS),
    (errors.NonFiniteLogitsError("not finite"), grpc.StatusCode.INTERNAL),
    (errors.ConstraintError("left its form"), grpc.StatusCode.INTERNAL),
    (errors.PassFailedError("the engine failed"), grpc.StatusCode.INTERNAL),
    (errors.QuarantinedError("refused", metadata={"fingerprint": "f"}), grpc.StatusCode.FAILED_PRECONDITION),
]
RESPONSES: dict[str, Any] = {
    "Prefill": prefill_service_pb2.PrefillResponse(),
    "Generate": decode_service_pb2.DecodeServiceGenerateResponse(),
}


class Prefill(prefill_service_pb2_grpc.PrefillServiceServicer):
    """Answers once, then raises; as a generator."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def Prefill(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Yield and raise."""
        yield RESPONSES["Prefill"]
        raise self.error


class Decode(decode_service_pb2_grpc.DecodeServiceServicer):
    """Answers once, then raises; as a coroutine."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def Generate(self, request: Any, context: Any) -> None:  # noqa: N802
        """Write and raise."""
        await context.write(RESPONSES["Generate"])
        raise self.error


class Router(router_service_pb2_grpc.RouterServiceServicer):
    """Raises at once, on a unary and on a bidirectional call."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def Place(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Raise."""
        raise self.error

    async def Register(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Raise after the first report."""
        async for _ in request_iterator:
            raise self.error
        yield router_service_pb2.RegisterResponse()


async def call_prefill(channel: grpc.aio.Channel) -> int:
    """Call a generator handler; return the messages received."""
    stub = prefill_service_pb2_grpc.PrefillServiceStub(channel)  # type: ignore[no-untyped-call]
    return await consume(stub.Prefill(prefill_service_pb2.PrefillRequest(), timeout=10))


async def call_decode(channel: grpc.aio.Channel) -> int:
    """Call a coroutine handler that writes."""
    stub = decode_service_pb2_grpc.DecodeServiceStub(channel)  # type: ignore[no-untyped-call]
    return await consume(stub.Generate(decode_service_pb2.DecodeServiceGenerateRequest(), timeout=10))


async def call_place(channel: grpc.aio.Channel) -> int:
    """Call a unary handler."""
    stub = router_service_pb2_grpc.RouterServiceStub(channel)  # type: ignore[no-untyped-call]
    await stub.Place(router_service_pb2.PlaceRequest(), timeout=10)
    return 1


async def call_register(channel: grpc.aio.Channel) -> int:
    """Call a bidirectional handler."""
    stub = router_service_pb2_grpc.RouterServiceStub(channel)  # type: ignore[no-untyped-call]
    return await consume(stub.Register(iter([router_service_pb2.RegisterRequest()]), timeout=10))


async def consume(call: Any) -> int:
    """Count the messages of a call."""
    return len([message async for message in call])


CALLS: list[Callable[[grpc.aio.Channel], Any]] = [call_prefill, call_decode, call_place, call_register]


def raised(error: Exception, call: Callable[[grpc.aio.Channel], Any]) -> grpc.aio.AioRpcError:
    """Return what a client sees of an error that a servicer raises."""

    async def run() -> grpc.aio.AioRpcError:
        server = GrpcServer("127.0.0.1:0")
        register = {
            "PrefillService": partial(prefill_service_pb2_grpc.add_PrefillServiceServicer_to_server, Prefill(error)),
            "DecodeService": partial(decode_service_pb2_grpc.add_DecodeServiceServicer_to_server, Decode(error)),
            "RouterService": partial(router_service_pb2_grpc.add_RouterServiceServicer_to_server, Router(error)),
        }
        for name, add in register.items():
            server.add(f"baton.v1.{name}", add)
        channel = open_channel(f"127.0.0.1:{await server.start()}")
        try:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(channel)
            return caught.value
        finally:
            await channel.close()
            await server.drain(0)

    return asyncio.run(asyncio.wait_for(run(), 20))


@pytest.mark.parametrize(("error", "code"), ERRORS, ids=lambda value: getattr(value, "reason", ""))
def test_an_error_arrives_as_it_was_raised(error: errors.BatonError, code: grpc.StatusCode) -> None:
    """Class, reason, message and metadata, with the documented status code."""
    seen = raised(error, call_place)
    received = error_from_rpc(seen)

    assert seen.code() is code
    assert type(received) is type(error)
    assert (received.reason, received.message, received.metadata) == (error.reason, error.message, error.metadata)


@pytest.mark.parametrize("call", CALLS)
def test_every_kind_of_handler_is_guarded(call: Callable[[grpc.aio.Channel], Any]) -> None:
    """Generators, coroutines that write, unary and bidirectional ones."""
    seen = raised(errors.OverloadedError("later"), call)
    info = error_info(seen)

    assert seen.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert info is not None
    assert (info.reason, info.domain) == ("QUEUE_FULL", DOMAIN)


def test_a_generator_ends_when_its_caller_goes() -> None:
    """Nobody waits for the garbage collector, which may come at any time and in any thread: here all are kept."""
    ended, kept = asyncio.Event(), list[Any]()

    class Endless(Prefill):
        async def Prefill(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
            """Yield more than the connection takes."""
            try:
                while True:
                    yield prefill_service_pb2.PrefillResponse(request_crc32c=1)
            finally:
                ended.set()

    async def run() -> None:
        sys.set_asyncgen_hooks(firstiter=kept.append)
        server = GrpcServer("127.0.0.1:0")
        add = prefill_service_pb2_grpc.add_PrefillServiceServicer_to_server
        server.add("baton.v1.PrefillService", partial(add, Endless(KeyError())))
        async with open_channel(f"127.0.0.1:{await server.start()}") as channel:
            stub = prefill_service_pb2_grpc.PrefillServiceStub(channel)  # type: ignore[no-untyped-call]
            call = stub.Prefill(prefill_service_pb2.PrefillRequest())
            await call.read()
            call.cancel()
            await asyncio.wait_for(ended.wait(), 10)
        await server.drain(0)

    asyncio.run(run())
    assert kept


@pytest.mark.parametrize("call", CALLS)
def test_a_bug_is_an_internal_error_that_says_no_more_than_its_class(call: Callable[[grpc.aio.Channel], Any]) -> None:
    """The traceback stays in the log."""
    seen = raised(KeyError("secret"), call)

    assert seen.code() is grpc.StatusCode.INTERNAL
    assert "KeyError" in (seen.details() or "")
    assert "secret" not in (seen.details() or "")


def test_a_connection_failure_is_an_unavailable_peer() -> None:
    """Nobody listens there."""

    async def run() -> grpc.aio.AioRpcError:
        async with open_channel("127.0.0.1:1") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call_place(channel)
            return caught.value

    seen = asyncio.run(asyncio.wait_for(run(), 20))

    assert isinstance(error_from_rpc(seen), errors.UnavailableError)


def test_every_class_of_the_tree_has_a_status_or_never_crosses() -> None:
    """A class that is added to the tree is added here."""
    tested = {type(error) for error, _ in ERRORS}

    tree = {error for error in errors.BatonError.__subclasses__() if error.__module__ == errors.__name__}
    assert tree == tested | {errors.ConfigurationError}


def test_a_taken_port_is_a_configuration_error_that_names_the_address() -> None:
    """Said before anything is served."""

    async def run() -> None:
        first = GrpcServer("127.0.0.1:0")
        port = await first.start()
        try:
            with pytest.raises(errors.ConfigurationError, match=f"127.0.0.1:{port}"):
                await GrpcServer(f"127.0.0.1:{port}").start()
        finally:
            await first.drain(0)

    asyncio.run(asyncio.wait_for(run(), 20))
