"""Many generations in one call, over a real channel."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from baton.decode import generation, servicer
from baton.decode.generation import DecodeGenerator
from baton.engine.events import Isolated, Listener
from baton.engine.request import SamplingParams
from baton.errors import InvalidFieldError, UnavailableError
from baton.internal.v1.decode_service_pb2 import (
    DecodeServiceGenerateRequest,
    Finished,
    ServeRequest,
    ServeResponse,
    StreamFailed,
    StreamStart,
)
from baton.rpc.status import error_from_rpc
from baton.v1.generation_pb2 import SamplingParameters
from baton.wire.quantities import duration_from_seconds
from decode.pair import PREFILL_ID, TIMEOUT_SECONDS, Pair, generate, request_of, with_pair
from engine.rig import GREEDY, expected_tokens, prompt_of

PROMPT = prompt_of(41)


@dataclass
class Heard:
    """What one stream said."""

    is_accepted: bool = False
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    finished: Finished | None = None
    failed: StreamFailed | None = None


class Gateway:
    """Opens a call, and sorts what comes by stream; every index must be the next one."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self.call = pair.stub.Serve()
        self.streams: dict[int, Heard] = {}
        self.num_messages = 0
        self.is_engine_alive = False

    async def start(
        self, requests: Sequence[DecodeServiceGenerateRequest], first_id: int = 1, beat_seconds: float = 0.0
    ) -> None:
        """Begin streams in one message; promise others if there is a time between them."""
        granted = map(self._pair.granted, requests)
        starts = [StreamStart(stream_id=first_id + index, request=one) for index, one in enumerate(granted)]
        beat = duration_from_seconds(beat_seconds) if beat_seconds else None
        await self.call.write(ServeRequest(starts=starts, beat_interval=beat))

    async def read(self) -> bool:
        """Take a message; return False at the end of the call."""
        response = await self.call.read()
        if not isinstance(response, ServeResponse):
            return False
        self.num_messages += 1
        self._take(response)
        return True

    async def read_ends(self, num_streams: int) -> None:
        """Read until so many streams have ended."""
        while sum(bool(heard.finished or heard.failed) for heard in self.streams.values()) < num_streams:
            assert await self.read()

    async def read_all(self) -> None:
        """Read to the end of the call."""
        while await self.read():
            pass

    def _take(self, response: ServeResponse) -> None:
        for stream_id in response.accepted_stream_ids:
            self._heard(stream_id).is_accepted = True
        columns = (response.token_stream_ids, response.token_output_indexes, response.token_ids)
        for stream_id, index, token_id in zip(*columns, strict=True):
            assert index == len(self._heard(stream_id).token_ids)
            self._heard(stream_id).token_ids.append(token_id)
        for entry in response.tokens:
            heard = self._heard(entry.stream_id)
            assert entry.chunk.output_index == len(heard.token_ids)
            heard.token_ids += entry.chunk.token_ids
            heard.logprobs += entry.chunk.logprobs
        for end in response.finished:
            self._heard(end.stream_id).finished = end.finished
        for failure in response.failed:
            self._heard(failure.stream_id).failed = failure
        self.is_engine_alive |= response.is_engine_alive

    def _heard(self, stream_id: int) -> Heard:
        heard = self.streams.setdefault(stream_id, Heard())
        assert heard.finished is None
        assert heard.failed is None
        return heard


def test_streams_of_one_call_say_what_calls_of_their_own_say() -> None:
    """Local and remote prefills; usage and summary included."""
    prompts = [prompt_of(5 + 3 * index, seed=index) for index in range(8)]

    async def client(pair: Pair) -> None:
        gateway = Gateway(pair)
        await gateway.start(
            [
                request_of(prompt, request_id=f"r{index}", prefill_node_id=PREFILL_ID if index % 2 else "")
                for index, prompt in enumerate(prompts)
            ]
        )
        await gateway.read_ends(8)
        await gateway.call.done_writing()

        assert not await gateway.read()
        for index, prompt in enumerate(prompts):
            heard = gateway.streams[index + 1]
            assert heard.is_accepted
            assert heard.token_ids == expected_tokens(prompt, 8)
            assert heard.finished is not None
            assert heard.finished.usage.prompt_token_count == len(prompt)
            assert heard.finished.summary.fallback_reason == ""
            assert heard.finished.summary.prefill_node_id == (PREFILL_ID if index % 2 else "decode-1")

    with_pair(client)


def test_tokens_of_one_pass_share_a_message() -> None:
    """Eight streams of 40 tokens take about as many messages as one."""

    async def client(pair: Pair) -> None:
        params = replace(GREEDY, max_tokens=40)
        gate = threading.Event()
        pair.decode.engine.call(lambda: _pass(gate))
        gateway = Gateway(pair)
        await gateway.start(
            [request_of(prompt_of(3, seed=n), params, request_id=f"r{n}", prefill_node_id="") for n in range(8)]
        )
        while len(gateway.streams) < 8:
            assert await gateway.read()
        gate.set()
        await gateway.read_ends(8)
        await gateway.call.done_writing()

        assert not await gateway.read()
        assert sum(len(heard.token_ids) for heard in gateway.streams.values()) == 320
        assert gateway.num_messages < 80

    with_pair(client)


def test_logprobs_come_with_their_tokens() -> None:
    """One entry per token."""

    async def client(pair: Pair) -> None:
        gateway = Gateway(pair)
        await gateway.start([request_of(PROMPT, replace(GREEDY, num_top_logprobs=2))])
        await gateway.read_ends(1)
        gateway.call.cancel()

        heard = gateway.streams[1]
        assert heard.token_ids == expected_tokens(PROMPT, 8)
        assert [entry.token_id for entry in heard.logprobs] == heard.token_ids
        assert all(len(entry.alternatives) == 2 for entry in heard.logprobs)

    with_pair(client)


def test_a_bad_stream_fails_alone() -> None:
    """With code, reason and metadata of a call of its own; refused by the servicer or by the engine."""

    async def client(pair: Pair) -> None:
        gateway = Gateway(pair)
        await gateway.start(
            [
                request_of(PROMPT, request_id="good"),
                request_of(PROMPT, request_id="other", model_id="other"),
                request_of([5, 10**6], request_id="token"),
            ]
        )
        await gateway.read_ends(3)
        gateway.call.cancel()

        model, token = gateway.streams[2].failed, gateway.streams[3].failed
        assert gateway.streams[1].token_ids == expected_tokens(PROMPT, 8)
        assert model is not None
        assert (model.code, model.reason) == (grpc.StatusCode.FAILED_PRECONDITION.value[0], "MODEL_MISMATCH")
        assert model.metadata["field"] == "model_id"
        assert token is not None
        assert (token.code, token.reason) == (grpc.StatusCode.INVALID_ARGUMENT.value[0], "INVALID_FIELD")
        assert token.metadata["field"] == "prompt_token_ids"

    with_pair(client)


def test_a_bug_in_the_start_of_a_stream_ends_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is: the call carries all streams of a gateway."""
    convert = generation.sampling_from_proto

    def fail_once(message: SamplingParameters) -> SamplingParams:
        if message.top_k == 13:
            raise RuntimeError("a bug")
        return convert(message)

    monkeypatch.setattr(generation, "sampling_from_proto", fail_once)

    async def client(pair: Pair) -> None:
        gateway = Gateway(pair)
        good, bad = request_of(PROMPT, request_id="good"), request_of(PROMPT, request_id="bad")
        bad.sampling.top_k = 13
        await gateway.start([good, bad])
        await gateway.read_ends(2)
        gateway.call.cancel()

        failed = gateway.streams[2].failed
        assert failed is not None
        assert (failed.code, failed.reason) == (grpc.StatusCode.INTERNAL.value[0], "INTERNAL")
        assert gateway.streams[1].token_ids == expected_tokens(PROMPT, 8)

    with_pair(client)


def test_a_cancelled_stream_frees_its_blocks_and_says_no_more() -> None:
    """The other one goes on."""

    async def client(pair: Pair) -> None:
        gate = threading.Event()
        gateway = Gateway(pair)
        pair.decode.engine.call(lambda: _pass(gate))
        await gateway.start([request_of(PROMPT, request_id=name, prefill_node_id="") for name in ("a", "b", "c")])
        while len(gateway.streams) < 3:
            assert await gateway.read()
        await gateway.call.write(ServeRequest(cancelled_stream_ids=[1, 99]))
        await gateway.start([request_of(PROMPT, request_id="d", model_id="other")], first_id=4)
        await gateway.read_ends(1)  # so the cancellation has come
        gate.set()
        await gateway.read_ends(3)
        await gateway.call.done_writing()

        assert not await gateway.read()
        assert gateway.streams[1] == Heard(is_accepted=True)
        assert gateway.streams[2].token_ids == gateway.streams[3].token_ids == expected_tokens(PROMPT, 8)

    with_pair(client)


def test_a_broken_call_frees_all_of_its_streams() -> None:
    """At once: `with_pair` finds every block free."""

    async def client(pair: Pair) -> None:
        params = replace(GREEDY, max_tokens=200)
        gateway = Gateway(pair)
        await gateway.start([request_of(PROMPT, params, request_id=f"r{index}") for index in range(4)])
        await gateway.read()
        gateway.call.cancel()

    with_pair(client)


def test_a_stream_id_cannot_be_used_twice() -> None:
    """The call ends, and all of its streams."""

    async def client(pair: Pair) -> None:
        gateway = Gateway(pair)
        await gateway.start([request_of(PROMPT, request_id="a")], first_id=3)
        await gateway.start([request_of(PROMPT, request_id="b")], first_id=3)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await gateway.read_all()

        error = error_from_rpc(caught.value)
        assert isinstance(error, InvalidFieldError)
        assert error.field == "stream_id"

    with_pair(client)


def test_a_node_that_drains_ends_its_calls_after_their_last_stream() -> None:
    """What runs is finished, what is asked for meanwhile is sent elsewhere."""

    async def client(pair: Pair) -> None:
        gate = threading.Event()
        pair.decode.engine.call(lambda: _pass(gate))
        gateway, idle = Gateway(pair), Gateway(pair)
        await gateway.start([request_of(PROMPT, prefill_node_id="", request_id="a")])
        await idle.start([request_of(PROMPT, request_id="b", model_id="other")])
        await idle.read_ends(1)
        assert await gateway.read()
        pair.decode.is_draining = True
        pair.decode_servicer.drain()
        await gateway.start([request_of(PROMPT, request_id="c")], first_id=2)
        await gateway.read_ends(1)
        gate.set()

        assert await idle.read()  # that the node leaves
        assert not await idle.read()
        await gateway.read_all()
        assert gateway.streams[1].token_ids == expected_tokens(PROMPT, 8)
        assert gateway.streams[2].failed is not None
        assert gateway.streams[2].failed.reason == "DRAINING"

    with_pair(client)


def test_a_node_whose_engine_hangs_gives_up_its_streams_at_once() -> None:
    """While the engine's thread is held up: with an error that sends them elsewhere; nothing of them is left then."""

    async def client(pair: Pair) -> None:
        gate = threading.Event()
        pair.decode.engine.call(lambda: _pass(gate))
        gateway = Gateway(pair)
        await gateway.start([request_of(PROMPT, prefill_node_id="", request_id=each) for each in "ab"])
        assert await gateway.read()
        pair.decode_servicer.give_up(UnavailableError("a pass hangs", reason="ENGINE_HUNG"))
        await gateway.read_ends(2)

        assert [gateway.streams[each].failed.reason for each in (1, 2)] == ["ENGINE_HUNG"] * 2  # type: ignore[union-attr]
        gate.set()
        await pair.decode.settle()
        gateway.call.cancel()

    with_pair(client)


def test_a_gateway_that_promised_to_speak_and_is_silent_is_taken_for_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its streams hold is free then; one that promised nothing, and one without streams, may be silent."""
    monkeypatch.setattr(servicer, "_LOOK_SECONDS", 0.02)

    async def client(pair: Pair) -> None:
        gate = threading.Event()
        pair.decode.engine.call(lambda: _pass(gate))
        silent, older, idle = Gateway(pair), Gateway(pair), Gateway(pair)
        await idle.call.write(ServeRequest(beat_interval=duration_from_seconds(0.02)))
        await older.start([request_of(PROMPT, prefill_node_id="", request_id="older")])
        assert await older.read()
        await silent.start([request_of(PROMPT, prefill_node_id="", request_id="a")], beat_seconds=0.02)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await silent.read_all()

        assert error_from_rpc(caught.value).reason == "SILENT_GATEWAY"
        gate.set()
        await older.read_ends(1)
        await pair.decode.settle()
        assert older.streams[1].token_ids == expected_tokens(PROMPT, 8)
        await idle.start([request_of(PROMPT, request_id="b", model_id="other")])
        await idle.read_ends(1)
        older.call.cancel()
        idle.call.cancel()

    with_pair(client)


@pytest.mark.parametrize(("look_seconds", "num_looks"), [(0.05, 15), (0.085, 9), (5.0, 8)])
def test_silence_is_time_but_of_a_stop_of_the_node_itself_two_looks(
    monkeypatch: pytest.MonkeyPatch, look_seconds: float, num_looks: int
) -> None:
    """Looks that come late on a busy machine must not add up; what came while the node stood still is not read yet."""
    now_seconds = 0.0

    async def late(seconds: float) -> None:
        assert seconds == 0.05
        nonlocal now_seconds
        now_seconds += look_seconds

    async def listen() -> None:
        call = servicer.GatewayCall(cast(DecodeGenerator, None))
        call._loop = SimpleNamespace(time=lambda: now_seconds)  # type: ignore[assignment]
        call._streams, call._beat_seconds = {1: object()}, 0.24  # type: ignore[dict-item]
        monkeypatch.setattr(asyncio, "sleep", late)
        with pytest.raises(UnavailableError, match="silent"):
            await call._listen()

    asyncio.run(listen())

    assert now_seconds == pytest.approx(num_looks * look_seconds)


def test_only_an_engine_that_works_says_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """While its thread is held up nothing is said; then a stream that waits hears of it without a token of its own."""
    monkeypatch.setattr(servicer, "_HEARTBEAT_SECONDS", 0.05)

    async def client(pair: Pair) -> None:
        held, going, is_asked = threading.Event(), threading.Event(), asyncio.Event()
        engine, gateway = pair.decode.engine, Gateway(pair)
        call = engine.call

        def noted(function: Callable[[], None]) -> None:
            call(function)
            is_asked.set()

        call(lambda: _pass(held))
        await gateway.start([request_of(PROMPT)])
        assert await gateway.read()
        engine.call = noted  # type: ignore[method-assign]
        reading = asyncio.create_task(gateway.read())
        await is_asked.wait()
        assert not reading.done()
        call(lambda: _pass(going))  # behind the question, and before any pass
        held.set()
        assert await reading
        while not gateway.is_engine_alive:
            assert await gateway.read()
        assert gateway.streams[1] == Heard(is_accepted=True)
        going.set()
        gateway.call.cancel()

    with_pair(client)


def test_what_gathers_while_a_gateway_takes_nothing_stays_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages have a bound; tokens that do not fit go into the next."""
    monkeypatch.setattr(servicer, "MAX_TOKENS", 3)
    gate = asyncio.Event()
    written: list[ServeResponse] = []

    async def client(pair: Pair) -> None:
        requests: asyncio.Queue[ServeRequest | None] = asyncio.Queue()

        async def stream() -> AsyncIterator[ServeRequest]:
            while (request := await requests.get()) is not None:
                yield request

        async def write(response: ServeResponse) -> None:
            await gate.wait()
            written.append(response)

        call = servicer.GatewayCall(pair.decode_servicer.generator)
        serving = asyncio.create_task(call.run(stream(), write))
        requests.put_nowait(ServeRequest(starts=[StreamStart(stream_id=1, request=request_of(PROMPT))]))
        await generate(pair, request_of(PROMPT, request_id="another"))
        await pair.settle()
        gate.set()
        requests.put_nowait(None)
        await serving

        assert [token for message in written for token in message.token_ids] == expected_tokens(PROMPT, 8)
        assert all(len(message.token_ids) <= 3 for message in written)

    with_pair(client)


def test_a_gateway_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call ends, and its streams are freed."""
    monkeypatch.setattr(servicer, "WRITE_TIMEOUT_SECONDS", 0.1)

    async def client(pair: Pair) -> None:
        async def stream() -> AsyncIterator[ServeRequest]:
            yield ServeRequest(starts=[StreamStart(stream_id=1, request=request_of(PROMPT))])
            await asyncio.Event().wait()

        async def write(_response: ServeResponse) -> None:
            await asyncio.Event().wait()

        call = servicer.GatewayCall(pair.decode_servicer.generator)
        with pytest.raises(Exception, match="took no message") as caught:
            await call.run(stream(), write)

        assert getattr(caught.value, "reason", "") == "SLOW_GATEWAY"

    with_pair(client, is_patient=False)


def _pass(gate: threading.Event) -> None:
    """Keep the engine's thread until a test lets it go."""
    assert gate.wait(TIMEOUT_SECONDS)


def test_what_would_begin_while_its_call_ends_is_left() -> None:
    """No coroutine is lost half made: the call cancels the generation next."""

    async def work() -> None:
        raise AssertionError("it must not run")

    async def main() -> None:
        ending = generation.Generation.__new__(generation.Generation)
        ending._context = contextvars.copy_context()
        async with asyncio.TaskGroup() as tasks:
            ending._tasks = tasks
            tasks.create_task(_break())
            try:
                await asyncio.sleep(TIMEOUT_SECONDS)
            finally:
                begun.append(ending._begin(work()))

    begun: list[asyncio.Task[None] | None] = []
    with pytest.raises(ExceptionGroup):
        asyncio.run(main())

    assert begun == [None]


async def _break() -> None:
    raise ValueError("the call breaks")


def test_the_engine_waits_for_no_word_of_a_stream_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client may go while its pass alone is announced; all others would wait half a second, twice."""
    told = threading.Event()
    listeners: list[Listener] = []

    async def client(pair: Pair) -> None:
        monkeypatch.setattr(pair.decode.engine, "submit", lambda _request, listener: listeners.append(listener))
        async with asyncio.TaskGroup() as tasks:
            sink: Any = None
            request = request_of(PROMPT, prefill_node_id="")
            pair.generator.start(request, sink, tasks).close()
        listeners[0](Isolated(is_alone=True, told=told.set))

    with_pair(client)

    assert told.is_set()
