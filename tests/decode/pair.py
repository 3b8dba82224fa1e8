"""A prefill node and a decode node on real channels, with mock engines and a way to damage what passes between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast
from unittest.mock import patch

import grpc

from baton.capacity.hardware import PRESETS
from baton.capacity.prefix_reuse import MAX_FRAME_BYTES
from baton.decode import servicer
from baton.decode.generation import DecodeGenerator
from baton.decode.kv_stream.prefill_stream import TransportChoice
from baton.decode.kv_stream.reader import Timeouts
from baton.decode.kv_stream.receive_budget import ReceiveBudget, receive_bytes_for
from baton.decode.peers import LINGER_SECONDS, PeerSet
from baton.decode.servicer import DecodeServicer
from baton.engine.constraints.compilation import ConstraintCompiler
from baton.engine.engine import Engine
from baton.engine.request import SamplingParams
from baton.engine.request_registry import Deliverable, deliver
from baton.engine.runners.base import Runner
from baton.engine.runners.mock import MockRunner
from baton.engine.scheduling.admission import SchedulerLimits
from baton.errors import UnavailableError
from baton.grpc_sockets.flow_control import StreamEndedError
from baton.grpc_sockets.server_connection import ServerCall
from baton.internal.v1 import (
    decode_service_pb2,
    decode_service_pb2_grpc,
    prefill_service_pb2,
    prefill_service_pb2_grpc,
    router_service_pb2,
)
from baton.kv_transport import fast_channel
from baton.kv_transport.frame_codec import serialize_response
from baton.kv_transport.kv_services import FastServer, ReceivedRequest, add_prefill_service
from baton.node.node import WorkerNode
from baton.node.sensors.machine import MachineSensors
from baton.node.sensors.monitor import NodeMonitor
from baton.prefill.prefiller import Prefiller
from baton.prefill.servicer import PrefillServicer, serve_fast
from baton.rpc import channel
from baton.rpc.channel import open_channel
from baton.rpc.server import GrpcServer
from baton.security.access import TransferGate
from baton.shm import borrower, lender
from baton.shm.lender import SEGMENT_BYTES, Lender
from baton.telemetry import names
from baton.telemetry.metrics import Metrics
from baton.v1 import generation_pb2
from decode.grants import grant_generation, grant_prefill, key_of
from engine.rig import GREEDY, LAYOUT, mock_runner
from engine.tokens import tokenizer_text
from node.sampling import sampling_to_proto

PREFILL_ID, SPARE_ID, DECODE_ID = "prefill-1", "prefill-2", "decode-1"
TRANSPORT: TransportChoice = "grpc"
"""What carries KV where a test does not say; a fixture may set it."""
TIMEOUT_SECONDS = 60.0
PATIENT = Timeouts(first_frame_seconds=30.0, frame_seconds=30.0)

Responses = AsyncIterator[prefill_service_pb2.PrefillResponse]
Damage = Callable[[Responses], Responses]


def usual_budget() -> ReceiveBudget:
    """Return a budget that keeps the largest frames of 64 streams."""
    return ReceiveBudget(receive_bytes_for(64, MAX_FRAME_BYTES), 64)


def decode_server(servicer: DecodeServicer) -> GrpcServer:
    """Return a server of a decode node; it does not run yet."""
    server = GrpcServer("127.0.0.1:0")
    register = partial(decode_service_pb2_grpc.add_DecodeServiceServicer_to_server, servicer)
    server.add("baton.internal.v1.DecodeService", register)
    return server


@dataclass
class ChangingTimeouts:
    """Stands for `Timeouts`: a test is impatient where it waits for a silence, and with nobody else."""

    first_frame_seconds: float
    frame_seconds: float


@dataclass
class Registration:
    """Stands for the stream to the router."""

    outcomes: list[generation_pb2.PlacementSummary] = field(default_factory=list)

    def report_outcome(self, summary: generation_pb2.PlacementSummary) -> None:
        """Keep an outcome."""
        self.outcomes.append(summary)


@dataclass(frozen=True)
class Settings:
    """The settings that services read."""

    max_step_tokens: int = 16


class Node:
    """Stands for a `WorkerNode`: an engine whose events come to this event loop."""

    def __init__(self, node_id: str, runner: Runner, *, computes_for_others: bool = False) -> None:
        self.node_id = node_id
        self.runner = runner
        self.profile = PRESETS["h200"].profile()
        self.settings = Settings()
        self.registration = Registration()
        self.placement_ids: list[str] = []
        self.is_draining = False
        self.transfers = TransferGate(key=key_of(node_id))
        self.monitor = NodeMonitor(runner, MachineSensors([]))
        self.constraints = ConstraintCompiler(
            tokenizer_text, vocabulary_size=runner.info.vocabulary_size, eos_token_ids=runner.info.eos_token_ids
        )
        self._loop = asyncio.get_running_loop()
        limits = SchedulerLimits(
            max_batch_size=8,
            max_step_tokens=self.settings.max_step_tokens,
            max_host_bytes=2**20,
            computes_for_others=computes_for_others,
        )
        self.engine = Engine(runner, limits, post=self._post, on_queue_change=self.placement_ids.extend)

    is_kv_quantized = False

    def check_accepts(self, *, lets_leave: bool = False) -> None:
        """Refuse while draining."""
        if self.is_draining:
            raise UnavailableError("shutting down", reason="DRAINING")

    def forget(self) -> None:
        """Drop what has been kept of past requests."""
        self.registration.outcomes.clear()
        self.placement_ids.clear()

    async def settle(self) -> None:
        """Return when the engine holds nothing any more; every block is free then."""
        scheduler = self.engine.scheduler

        def is_idle() -> bool:
            if scheduler.waiting or scheduler.running or scheduler.receiving:
                return False
            scheduler.check_integrity()
            assert scheduler.pool.num_available == scheduler.pool.num_blocks
            return True

        while not await self.ask(is_idle):  # one question: what was given up may still come between two
            pass

    async def ask(self, question: Callable[[], Any]) -> Any:
        """Return what the engine's thread says between two passes."""
        answer = self._loop.create_future()

        def run() -> None:
            try:
                result, set_answer = question(), answer.set_result
            except AssertionError as error:
                result, set_answer = error, answer.set_exception
            self._loop.call_soon_threadsafe(set_answer, result)

        self.engine.call(run)
        return await asyncio.wait_for(answer, TIMEOUT_SECONDS)

    def _post(self, deliveries: list[Deliverable]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(deliver, deliveries)


class DamagedPrefill(PrefillServicer):
    """Serves prefills and passes them through what the test wants to go wrong."""

    def __init__(self, prefiller: Prefiller, damage: Damage) -> None:
        super().__init__(prefiller)
        self.damage = damage
        self.requests: list[prefill_service_pb2.PrefillRequest] = []

    async def Prefill(self, request: ReceivedRequest, context: Any) -> Any:  # noqa: N802
        """Stream a prompt's KV, damaged."""
        self.requests.append(request.message)
        async with aclosing(super().Prefill(request, context)) as whole:
            async for response in self.damage(_as_messages(whole)):
                yield response


class DamagedFastPath:
    """Serves the same on the fast path: as it is where nothing is damaged, else what the damage makes of it."""

    def __init__(self, servicer: DamagedPrefill, prefiller: Prefiller) -> None:
        self._servicer = servicer
        self._prefiller = prefiller
        self._loop = asyncio.get_running_loop()

    def serve(self, request: ReceivedRequest, call: ServerCall) -> None:
        """Stream a prompt's KV."""
        if self._servicer.damage is intact:
            self._servicer.requests.append(request.message)
            serve_fast(self._prefiller, request, call)
        else:
            asyncio.run_coroutine_threadsafe(self._send(request, call), self._loop).result(TIMEOUT_SECONDS)

    async def _send(self, request: ReceivedRequest, call: ServerCall) -> None:
        sending = asyncio.current_task()
        assert sending is not None
        call.watch(lambda: self._loop.call_soon_threadsafe(sending.cancel))
        try:
            async with aclosing(self._servicer.Prefill(request, None)) as responses:
                async for response in responses:
                    await asyncio.to_thread(call.send, response.SerializeToString())
        except asyncio.CancelledError:
            raise StreamEndedError("the caller has gone") from None


async def _as_messages(responses: Any) -> Responses:
    """Turn encoded frames into messages; they go out as any protobuf implementation would write them."""
    async for response in responses:
        yield prefill_service_pb2.PrefillResponse.FromString(serialize_response(response))


async def intact(responses: Responses) -> Responses:
    """Pass everything on."""
    async for response in responses:
        yield response


def silent_until_the_deadline(num_responses: int) -> Damage:
    """Return a damage that passes so many responses on, then nothing while TIMEOUT_SECONDS pass on the tests' clock."""

    async def damage(responses: Responses) -> Responses:
        num_passed = 0
        async for response in responses:
            yield response
            num_passed += 1
            if num_passed == num_responses:
                leap(TIMEOUT_SECONDS)
                await asyncio.Event().wait()

    return damage


class PrefillSide:
    """A prefill node with its servers."""

    def __init__(self, node_id: str, damage: Damage, runner: Runner | None, max_outbox_bytes: int = 1 << 30) -> None:
        self.node = Node(node_id, runner or mock_runner())
        self.prefiller = prefiller = Prefiller(cast(WorkerNode, self.node), max_outbox_bytes)
        self.servicer = DamagedPrefill(prefiller, damage)
        self.fast_server = FastServer("127.0.0.1", 0, DamagedFastPath(self.servicer, prefiller).serve)
        self.fast_port = 0
        self.server = GrpcServer("127.0.0.1:0")
        self.server.add("baton.internal.v1.PrefillService", partial(add_prefill_service, self.servicer))

    async def start(self) -> None:
        """Serve."""
        self.node.engine.start()
        await self.server.start()
        self.fast_port = self.fast_server.start()

    async def close(self) -> None:
        """Stop serving."""
        await self.server.drain(0)
        await self.fast_server.drain(0)
        await asyncio.to_thread(self.node.engine.close)

    def peer(self, epoch: int = 1) -> router_service_pb2.Peer:
        """Return the node as the router names it."""
        return router_service_pb2.Peer(
            node_id=self.node.node_id,
            address=f"127.0.0.1:{self.server.port}",
            epoch=epoch,
            fast_address=f"127.0.0.1:{self.fast_port}" if self.fast_port else "",
        )


class CountedMetrics(Metrics):
    """Remembers what is counted: by how much, and the values of its attributes, by metric."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: dict[names.MetricName, list[tuple[float | str, ...]]] = {}

    def add(self, metric: names.MetricName, value: float = 1, attributes: Mapping[str, str] | None = None) -> None:
        """Remember it."""
        self.counted.setdefault(metric, []).append((value, *(attributes or {}).values()))


class Pair:
    """Both nodes, their servers, and a client of the decode node; and a spare prefill node, intact."""

    def __init__(
        self,
        damage: Damage = intact,
        *,
        prefill_runner: Runner | None = None,
        spare_runner: Runner | None = None,
        decode_runner: Runner | None = None,
        timeouts: Timeouts | ChangingTimeouts = PATIENT,
        linger_seconds: float = LINGER_SECONDS,
        transport: TransportChoice | None = None,
        max_outbox_bytes: int = 1 << 30,
        shared_memory_bytes: int | None = None,
    ) -> None:
        transport = transport or TRANSPORT
        self.prefill_side = PrefillSide(PREFILL_ID, damage, prefill_runner, max_outbox_bytes)
        self.spare_side = PrefillSide(SPARE_ID, intact, spare_runner)
        self.prefill, self.servicer = self.prefill_side.node, self.prefill_side.servicer
        self.prefill_server, self.fast_server = self.prefill_side.server, self.prefill_side.fast_server
        self.decode = Node(DECODE_ID, decode_runner or mock_runner())
        self.metrics = CountedMetrics()
        self.lender = Lender(4 * SEGMENT_BYTES if shared_memory_bytes is None else shared_memory_bytes)
        self.peers = PeerSet(
            0,
            lambda _link: None,
            choice=transport,
            lender=self.lender,
            metrics=self.metrics,
            budget=usual_budget(),
            linger_seconds=linger_seconds,
        )
        node = cast(WorkerNode, self.decode)
        self.generator = DecodeGenerator(node, self.peers, cast(Timeouts, timeouts), self.metrics, usual_budget())
        self.decode_servicer = DecodeServicer(self.generator)
        self.decode_server = decode_server(self.decode_servicer)

    @property
    def fast_port(self) -> int:
        """Port of the prefill node's fast path."""
        return self.prefill_side.fast_port

    async def start(self) -> None:
        """Serve, and make the nodes known to each other."""
        self.decode.engine.start()
        await self.prefill_side.start()
        await self.spare_side.start()
        await self.decode_server.start()
        self.channel = open_channel(f"127.0.0.1:{self.decode_server.port}")
        self.stub = decode_service_pb2_grpc.DecodeServiceStub(self.channel)
        ask = self.stub.Generate
        self.stub.Generate = lambda request, **options: ask(self.granted(request), **options)
        self.prefill_channel = open_channel(f"127.0.0.1:{self.prefill_server.port}")
        self.prefill_stub = prefill_service_pb2_grpc.PrefillServiceStub(self.prefill_channel)
        prefill = self.prefill_stub.Prefill
        self.prefill_stub.Prefill = lambda request: prefill(grant_prefill(request, PREFILL_ID, DECODE_ID))
        self._following = asyncio.create_task(self.peers.run())
        await self.name_peers(self.peer(), self.spare_side.peer())

    async def close(self) -> None:
        """Stop everything."""
        self._following.cancel()
        await asyncio.wait({self._following})
        await self.channel.close()
        await self.prefill_channel.close()
        await self.decode_server.drain(0)
        await self.prefill_side.close()
        await self.spare_side.close()
        await asyncio.to_thread(self.decode.engine.close)

    def granted(
        self, request: decode_service_pb2.DecodeServiceGenerateRequest
    ) -> decode_service_pb2.DecodeServiceGenerateRequest:
        """Return a request with what a router would grant it."""
        return grant_generation(request, DECODE_ID, self.decode.runner)

    def peer(self, epoch: int = 1) -> router_service_pb2.Peer:
        """Return the prefill node as the router names it."""
        return self.prefill_side.peer(epoch)

    async def name_peers(self, *peers: router_service_pb2.Peer) -> None:
        """Have the router name the prefill nodes, and wait until the decode node knows."""
        self.peers.update({peer.node_id: peer for peer in peers})
        while True:
            if all(self.peers._peers.get(peer.node_id) == peer for peer in peers):
                return
            await asyncio.sleep(0)

    async def reconnect(self, epoch: int, fast_address: str) -> None:
        """Have the router name the prefill node as another process, so that its connections are made again."""
        peer = self.peer(epoch)
        peer.fast_address = fast_address
        await self.name_peers(peer, self.spare_side.peer())

    def forget(self) -> None:
        """Drop what has been kept of past requests."""
        for node in (self.prefill, self.spare_side.node, self.decode):
            node.forget()
        self.servicer.requests.clear()
        self.spare_side.servicer.requests.clear()
        self.metrics.counted.clear()

    async def settle(self) -> None:
        """Return when the engines hold nothing."""
        await self.decode.settle()
        await self.prefill.settle()
        await self.spare_side.node.settle()


def with_pair(
    client: Callable[[Pair], Awaitable[None]],
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    is_patient: bool = True,
    **parts: Any,
) -> None:
    """Run a client against a pair; afterwards every block of both nodes must be free.

    Args:
        client: What to do.
        timeout_seconds: For all of it.
        is_patient: Whether the nodes wait longer for each other than they would in a deployment.
        parts: See `Pair`.
    """

    async def run() -> None:
        pair = Pair(**parts)
        await pair.start()
        try:
            await client(pair)
            await pair.settle()
        finally:
            await pair.close()

    with patient_connections() if is_patient else nullcontext():
        asyncio.run(asyncio.wait_for(run(), timeout_seconds))


@contextmanager
def patient_connections() -> Iterator[None]:
    """Give nodes time to greet and to answer each other: a busy machine may need more than a second or two."""
    timing = replace(fast_channel._TIMING, connect_seconds=TIMEOUT_SECONDS, ping_seconds=TIMEOUT_SECONDS)
    milliseconds = int(1000 * TIMEOUT_SECONDS)
    times = ("grpc.min_reconnect_backoff_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms")
    options = [(key, milliseconds if key in times else value) for key, value in channel._OPTIONS]
    with (
        patch.object(channel, "_OPTIONS", tuple(options)),
        patch.object(fast_channel, "_TIMING", timing),
        patch.object(lender, "_HANDSHAKE_SECONDS", TIMEOUT_SECONDS),
        patch.object(borrower, "_HANDSHAKE_SECONDS", TIMEOUT_SECONDS),
        patch.object(servicer, "WRITE_TIMEOUT_SECONDS", 2 * TIMEOUT_SECONDS),  # `leap` may come amid a write
    ):
        yield


def leap(seconds: float) -> None:
    """Put the clock of the running event loop forward: what would be due by then is due now."""
    loop = asyncio.get_running_loop()
    time = loop.time
    loop.time = lambda: time() + seconds  # type: ignore[method-assign]


def request_of(
    prompt: Sequence[int],
    params: SamplingParams = GREEDY,
    *,
    prefill_node_id: str = PREFILL_ID,
    alternative_node_ids: Sequence[str] = (),
    request_id: str = "request",
    **fields: Any,
) -> decode_service_pb2.DecodeServiceGenerateRequest:
    """Return a request with a remote prefill."""
    fields.setdefault("attempt", 1)
    fields.setdefault("model_id", LAYOUT.model_id)
    return decode_service_pb2.DecodeServiceGenerateRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling=sampling_to_proto(params),
        placement=router_service_pb2.Placement(
            placement_id="placement",
            decode_node_id=DECODE_ID,
            prefill_node_id=prefill_node_id,
            layers_per_frame=2,
            alternatives=[
                router_service_pb2.PrefillAlternative(prefill_node_id=node_id, layers_per_frame=1)
                for node_id in alternative_node_ids
            ],
        ),
        **fields,
    )


@dataclass
class Answer:
    """What a client saw."""

    token_ids: list[int]
    finished: decode_service_pb2.Finished

    @property
    def summary(self) -> generation_pb2.PlacementSummary:
        """Return what was measured."""
        return self.finished.summary


async def generate(pair: Pair, request: decode_service_pb2.DecodeServiceGenerateRequest) -> Answer:
    """Return the answer to a request: accepted first, finished last, every index once."""
    return await follow(pair.stub.Generate(request, timeout=TIMEOUT_SECONDS), len(request.output_token_ids))


async def follow(call: Any, first_index: int = 0) -> Answer:
    """Return the rest of an answer."""
    tokens: list[int] = []
    kinds = []
    finished = None
    async for response in call:
        kinds.append(response.WhichOneof("element"))
        if kinds[-1] == "tokens":
            assert response.tokens.output_index == first_index + len(tokens)
            tokens += response.tokens.token_ids
        elif kinds[-1] == "finished":
            finished = response.finished
    assert finished is not None
    assert kinds[-1] == "finished"
    assert kinds[0] in ("accepted", "tokens", "finished")
    return Answer(tokens, finished)


def other_layout() -> MockRunner:
    """Return a runner of another revision."""
    runner = mock_runner()
    runner.info = replace(runner.info, layout=replace(LAYOUT, model_revision_digest="c" * 32))
    return runner


async def code_of(call: Any) -> grpc.StatusCode:
    """Return the status of a call."""
    try:
        await follow(call)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK
