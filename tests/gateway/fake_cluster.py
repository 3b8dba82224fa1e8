"""A fake router and fake decode nodes behind a real gateway, on 127.0.0.1 and in one event loop of its own thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import grpc
import uvloop
from google.protobuf.duration_pb2 import Duration

from baton.errors import BatonError, StreamBrokenError, UnavailableError
from baton.gateway.generation.requests import GenerationRequest, GenerationState, PreparedPrompt, TokenPrompt
from baton.gateway.server import RunningGateway, run_gateway
from baton.gateway.settings import GatewaySettings
from baton.internal.v1 import decode_service_pb2 as decode
from baton.internal.v1 import kv_pb2, node_pb2
from baton.internal.v1 import router_service_pb2 as router
from baton.internal.v1.decode_service_pb2_grpc import DecodeServiceServicer, add_DecodeServiceServicer_to_server
from baton.internal.v1.router_service_pb2_grpc import RouterServiceServicer, add_RouterServiceServicer_to_server
from baton.rpc.server import GrpcServer
from baton.rpc.status import code_of
from baton.v1 import generation_pb2
from baton.v1 import generation_pb2 as generation
from system.plan import free_ports

MODEL = "tiny"
CONTEXT_TOKENS = 256
BLOCK_TOKENS = 4
REVISION = "0" * 32

Script = Callable[[decode.DecodeServiceGenerateRequest], AsyncIterator[decode.DecodeServiceGenerateResponse]]


def tokens(index: int, token_ids: Sequence[int], logprobs: Sequence[Any] = ()) -> decode.DecodeServiceGenerateResponse:
    """Return a message with tokens."""
    return decode.DecodeServiceGenerateResponse(
        tokens=decode.TokenChunk(output_index=index, token_ids=token_ids, logprobs=logprobs)
    )


def finished(
    request: decode.DecodeServiceGenerateRequest, node_id: str, reason: int = generation.FINISH_REASON_LENGTH
) -> decode.DecodeServiceGenerateResponse:
    """Return the last message of a generation."""
    summary = generation.PlacementSummary(
        decode_node_id=node_id,
        prefill_node_id="prefill-0",
        kv_byte_count=4096,
        key_wire_dtype=generation_pb2.KV_DTYPE_BFLOAT16,
        value_wire_dtype=generation_pb2.KV_DTYPE_INT8,
        kv_transport=generation_pb2.KV_TRANSPORT_FAST,
        prefill_energy_joules=1.5,
        decode_energy_joules=0.25,
        prefill_peak_memory_byte_count=1 << 30,
        decode_peak_memory_byte_count=1 << 31,
    )
    summary.decode_duration.FromMilliseconds(300)
    summary.transfer_duration.FromMilliseconds(100)
    summary.exposed_duration.FromMilliseconds(25)
    usage = generation.Usage(prompt_token_count=len(request.prompt_token_ids), cached_token_count=4)
    return decode.DecodeServiceGenerateResponse(finished=decode.Finished(reason=reason, usage=usage, summary=summary))


class FakeDecode(DecodeServiceServicer):
    """Answers with the prompt's tokens in a circle, one per message, unless it is given a script.

    A script may yield what returns a message of `Serve`, given its stream's id; its ConnectionResetError ends the call
    as the end of the process would.
    """

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id
        self.requests: list[decode.DecodeServiceGenerateRequest] = []
        self.script: Script | None = None
        self.cancelled = threading.Event()
        self.num_calls = 0
        self.is_engine_alive = False

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Generate."""
        self.requests.append(request)
        yield decode.DecodeServiceGenerateResponse(accepted=decode.Accepted(node_id=self.node_id))
        try:
            async for response in (self.script or self.echo)(request):
                yield response
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled.set()
            raise

    async def Serve(self, request_iterator: Any, context: Any) -> None:  # noqa: N802
        """Generate many: each stream is a call to `Generate`. Says that the engine lives if the test wants it."""
        self.num_calls += 1
        streams: dict[int, asyncio.Task[None]] = {}
        responses: asyncio.Queue[decode.ServeResponse | None] = asyncio.Queue()

        async def write_all() -> None:  # by a task that no stream's end cancels in the middle of a message
            while (response := await responses.get()) is not None:
                await context.write(response)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")

        writing = asyncio.create_task(write_all())
        beating = asyncio.create_task(self._beat(responses.put))
        try:
            async for request in request_iterator:
                for start in request.starts:
                    streams[start.stream_id] = asyncio.create_task(self._serve(start, responses.put))
                for stream_id in request.cancelled_stream_ids:
                    streams[stream_id].cancel()
        finally:
            for task in (writing, beating, *streams.values()):
                task.cancel()

    async def _beat(self, write: Any) -> None:
        while self.is_engine_alive:
            await write(decode.ServeResponse(is_engine_alive=True))
            await asyncio.sleep(0.05)

    async def _serve(self, start: decode.StreamStart, write: Any) -> None:
        try:
            async with contextlib.aclosing(self.Generate(start.request, None)) as responses:
                async for response in responses:
                    await write(response(start.stream_id) if callable(response) else served(start.stream_id, response))
            await write(failed(start.stream_id, StreamBrokenError("the script ended without a result")))
        except BatonError as error:
            await write(failed(start.stream_id, error))
        except ConnectionResetError:
            await write(None)

    async def echo(self, request: decode.DecodeServiceGenerateRequest) -> AsyncIterator[Any]:
        """Judge the prompt if that is asked for, and repeat it up to the token limit."""
        for chunk in judgement(request):
            yield chunk
        for index in range(len(request.output_token_ids), request.sampling.max_token_count):
            yield tokens(index, [echo_token(request, index)])
        yield finished(request, self.node_id)


def served(stream_id: int, response: decode.DecodeServiceGenerateResponse) -> decode.ServeResponse:
    """Return what `Serve` says for a response of `Generate`."""
    if response.HasField("accepted"):
        return decode.ServeResponse(accepted_stream_ids=[stream_id])
    if response.HasField("prompt"):
        return decode.ServeResponse(prompts=[decode.StreamPrompt(stream_id=stream_id, chunk=response.prompt)])
    if response.HasField("finished"):
        return decode.ServeResponse(finished=[decode.StreamFinished(stream_id=stream_id, finished=response.finished)])
    chunk = response.tokens
    if chunk.logprobs:
        return decode.ServeResponse(tokens=[decode.StreamTokens(stream_id=stream_id, chunk=chunk)])
    count = len(chunk.token_ids)
    return decode.ServeResponse(
        token_stream_ids=[stream_id] * count,
        token_output_indexes=range(chunk.output_index, chunk.output_index + count),
        token_ids=chunk.token_ids,
    )


def failed(stream_id: int, error: BatonError) -> decode.ServeResponse:
    """Return what `Serve` says of an error."""
    failure = decode.StreamFailed(
        stream_id=stream_id,
        code=code_of(error).value[0],
        message=error.message,
        reason=error.reason,
        metadata=error.metadata,
    )
    return decode.ServeResponse(failed=[failure])


def echo_token(request: decode.DecodeServiceGenerateRequest, index: int) -> int:
    """Return the output token of an index: the prompt in a circle."""
    return int(request.prompt_token_ids[index % len(request.prompt_token_ids)])


def judgement(request: decode.DecodeServiceGenerateRequest) -> list[decode.DecodeServiceGenerateResponse]:
    """Return the log-probabilities of the whole prompt, if they are asked for and there are any."""
    num_tokens = len(request.prompt_token_ids)
    is_asked = request.sampling.HasField("prompt_logprob_count")
    return [judged(request, 1, num_tokens)] if is_asked and num_tokens > 1 else []


def judged(request: decode.DecodeServiceGenerateRequest, begin: int, end: int) -> decode.DecodeServiceGenerateResponse:
    """Return log-probabilities of the prompt's tokens [begin, end): -position, and of the tokens beside each."""
    logprobs = [
        generation.TokenLogprob(
            token_id=request.prompt_token_ids[position],
            logprob=-position,
            rank=position,
            alternatives=[
                generation.TokenLogprob(token_id=request.prompt_token_ids[position] - 1 + index, logprob=-0.5 - index)
                for index in range(request.sampling.prompt_logprob_count)
            ],
        )
        for position in range(begin, end)
    ]
    return decode.DecodeServiceGenerateResponse(prompt=decode.PromptChunk(position=begin, logprobs=logprobs))


def generation_of(token_ids: Sequence[int]) -> GenerationState:
    """Return a generation of a prompt, nine tokens at most."""
    sampling, text = generation.SamplingParameters(max_token_count=9), cast(Any, None)
    prompt = PreparedPrompt(
        request=GenerationRequest("r", MODEL, TokenPrompt(token_ids), sampling),
        token_ids=token_ids,
        block_hashes=b"",
        block_tokens=BLOCK_TOKENS,
        model_id=MODEL,
        text=text,
        adapter=None,
        model_revision_digest=REVISION,
        sampling=sampling,
        end_token_ids=frozenset(),
        arrival_seconds=0.0,
    )
    return GenerationState("r", prompt, sampling, 0.0)


class FakeRouter(RouterServiceServicer):
    """Places on the first node that is not excluded."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.requests: list[router.PlaceRequest] = []
        self.candidates: list[router.Candidate] = []
        """Told with every placement."""
        self.loads: dict[str, node_pb2.LoadReport] = {}
        """What nodes are doing, by node id."""
        self.silences: dict[str, Duration] = {}
        """Time until they count as silent, by node id."""
        self.unusable_reasons: dict[str, str] = {}
        """Why they take no requests, by node id."""
        self.num_looks = 0
        """Times that the nodes were listed."""
        self.refusal: BatonError | None = None
        """Why nothing is placed."""
        self.degraded_max_tokens = 0
        """Output tokens to which requests are cut; 0: they are not."""

    async def Place(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Place."""
        self.requests.append(request)
        if self.refusal is not None:
            raise self.refusal
        for node_id, address in self._cluster.addresses.items():
            if node_id not in request.excluded_node_ids:
                placement = router.Placement(placement_id="p-1", decode_node_id=node_id, decode_address=address)
                placement.degraded_max_token_count = self.degraded_max_tokens
                return router.PlaceResponse(placement=placement, candidates=self.candidates)
        raise UnavailableError("no node can take it", reason="NO_NODE")

    async def ListNodes(self, request: Any, context: Any) -> Any:  # noqa: N802
        """List."""
        self.num_looks += 1
        nodes = [self._cluster.describe(node_id) for node_id in self._cluster.addresses]
        states = [
            router.NodeState(
                node=node,
                load=self.loads.get(node.node_id),
                heard_for=self.silences.get(node.node_id),
                unusable_reason=self.unusable_reasons.get(node.node_id, ""),
            )
            for node in nodes
        ]
        return router.ListNodesResponse(nodes=states)


class FakeCluster:
    """Runs everything; `decodes` and `router` say what was asked of them."""

    def __init__(self, model_dir: Path, *, num_nodes: int = 2, eos_token_ids: Sequence[int] = ()) -> None:
        self.model_dir = model_dir
        self.decodes = [FakeDecode(f"decode-{index}") for index in range(num_nodes)]
        self.router = FakeRouter(self)
        self.addresses: dict[str, str] = {}
        self.eos_token_ids = list(eos_token_ids)
        self.context_tokens = CONTEXT_TOKENS
        self.tokenizer_digest = ""
        self.adapters: dict[str, dict[str, str]] = {}  # digests by node and name
        self.router_server: GrpcServer | None = None
        self.router_port = free_ports(["router"])["router"]

    def describe(self, node_id: str) -> node_pb2.NodeDescription:
        """Return the description of a node."""
        return node_pb2.NodeDescription(
            node_id=node_id,
            role=node_pb2.NODE_ROLE_DECODE,
            address=self.addresses[node_id],
            model_id=MODEL,
            kv_layout=kv_pb2.KvLayout(model_revision_digest=REVISION),
            model_shape=node_pb2.ModelShape(max_context_token_count=self.context_tokens),
            block_token_count=BLOCK_TOKENS,
            tokenizer_digest=self.tokenizer_digest,
            eos_token_ids=self.eos_token_ids,
            adapters=[
                node_pb2.Adapter(name=name, digest=digest) for name, digest in self.adapters.get(node_id, {}).items()
            ],
        )

    @contextlib.asynccontextmanager
    async def run(self, **settings: Any) -> AsyncIterator[RunningGateway]:
        """Run servers and gateway."""
        servers = [await self._start_decode(servicer) for servicer in self.decodes]
        await self.start_router()
        try:
            defaults = {"model_dir": self.model_dir, "model_name": MODEL, "http_port": 0, "grpc_port": 0}
            defaults |= {"node_poll_seconds": 0.05, "drain_seconds": 1.0, "router_timeout_seconds": 10.0}
            defaults |= {"router_address": f"127.0.0.1:{self.router_port}"}
            async with run_gateway(GatewaySettings(**(defaults | settings))) as running:
                yield running
        finally:
            await self.stop_router()
            for server in servers:
                await server.drain(0)

    async def start_router(self) -> None:
        """Start the router; always on the same port."""
        self.router_server = GrpcServer(f"127.0.0.1:{self.router_port}")
        self.router_server.add(
            "baton.internal.v1.RouterService", lambda server: add_RouterServiceServicer_to_server(self.router, server)
        )
        self.router_port = await self.router_server.start()

    async def stop_router(self) -> None:
        """Stop the router."""
        if self.router_server is not None:
            server, self.router_server = self.router_server, None
            await server.drain(0)

    async def _start_decode(self, servicer: FakeDecode) -> GrpcServer:
        server = GrpcServer("127.0.0.1:0")
        server.add("baton.internal.v1.DecodeService", lambda each: add_DecodeServiceServicer_to_server(servicer, each))
        self.addresses[servicer.node_id] = f"127.0.0.1:{await server.start()}"
        return server


class Loop:
    """An event loop in a thread, so that tests can use blocking clients."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def call(self, coroutine: Any, timeout_seconds: float = 30) -> Any:
        """Run a coroutine there and return its result."""
        future: Future[Any] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return future.result(timeout_seconds)

    @contextlib.contextmanager
    def running(self, cluster: FakeCluster, **settings: Any) -> Iterator[RunningGateway]:
        """Run a cluster there; enters and leaves its context in one task, as task groups demand."""
        started: Future[RunningGateway] = Future()
        stop = self._stop = asyncio.Event()

        async def main() -> None:
            try:
                async with cluster.run(**settings) as running:
                    started.set_result(running)
                    await stop.wait()
            except BaseException as error:
                if not started.done():
                    started.set_exception(error)
                raise

        done = asyncio.run_coroutine_threadsafe(main(), self._loop)
        try:
            yield started.result(30)
        finally:
            self._loop.call_soon_threadsafe(stop.set)
            done.result(30)

    def begin_stop(self) -> None:
        """Have the gateway that runs drain; its context still waits for the end of that."""
        self._loop.call_soon_threadsafe(self._stop.set)

    def close(self) -> None:
        """End the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
