"""The public gRPC API through real channels."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from baton.gateway.api.grpc_api.answer import MAX_ENTRIES, GrpcWriter
from baton.gateway.generation.generator import AnswerReader
from baton.gateway.generation.requests import Delta
from baton.gateway.server import RunningGateway
from baton.text.output_format import OutputFormat
from baton.text.tools import Tool
from baton.v1 import generation_pb2 as generation
from baton.v1 import generation_service_pb2 as messages
from baton.v1.generation_service_pb2_grpc import GenerationServiceStub
from gateway.fake_cluster import CONTEXT_TOKENS, MODEL, FakeCluster, echo_token, tokens
from gateway.grpc_answer import answers
from gateway.tool_models import ANSWER, ARGUMENTS, FUNCTION, REASONING
from text.tokenizer_folders import byte_level

IDS = list(byte_level()("hello 😀")["input_ids"])
LIMIT = generation.SamplingParameters(max_token_count=len(IDS), seed=3)


@pytest.fixture
def channel(gateway: RunningGateway) -> Iterator[grpc.Channel]:
    """Return a channel of an ordinary, synchronous client."""
    with grpc.insecure_channel(f"127.0.0.1:{gateway.grpc_port}") as channel:
        yield channel


def _generate(channel: grpc.Channel, **fields: Any) -> list[Any]:
    return list(GenerationServiceStub(channel).Generate(messages.GenerateRequest(**fields), timeout=20))


def test_tokens_in_give_text_and_tokens_out(channel: grpc.Channel) -> None:
    """The last message says how it ended and where it ran."""
    responses = _generate(channel, tokens=messages.TokenSequence(token_ids=IDS), sampling=LIMIT)

    assert "".join(response.text for response in responses) == "hello 😀"
    assert [token_id for response in responses for token_id in response.token_ids] == IDS
    end = responses[-1].finished
    assert end.reason == generation.FINISH_REASON_LENGTH
    assert (end.usage.prompt_token_count, end.usage.completion_token_count) == (len(IDS), len(IDS))
    assert (end.usage.cached_token_count, end.usage.seed) == (4, 3)
    assert end.placement.decode_node_id == "decode-0"


def test_text_and_conversations_are_tokenized(channel: grpc.Channel, cluster: FakeCluster) -> None:
    """The conversation by the chat template, the text without."""
    turn = messages.ChatMessage(role="user", content="hello")
    _generate(channel, model=MODEL, text="hello 😀", sampling=LIMIT)
    _generate(channel, conversation=messages.Conversation(messages=[turn]), sampling=LIMIT)

    text, chat = (list(request.prompt_token_ids) for request in cluster.decodes[0].requests)
    assert text == IDS
    expected = byte_level().apply_chat_template(
        [{"role": "user", "content": "hello"}], add_generation_prompt=True, return_dict=False
    )
    assert chat == list(expected)


@pytest.mark.parametrize(
    ("fields", "code", "problem"),
    [
        ({}, grpc.StatusCode.INVALID_ARGUMENT, "input"),
        ({"text": ""}, grpc.StatusCode.INVALID_ARGUMENT, "text"),
        ({"text": "x", "model": "other"}, grpc.StatusCode.NOT_FOUND, "other"),
        ({"text": "x", "stop": [""]}, grpc.StatusCode.INVALID_ARGUMENT, "stop"),
        ({"conversation": {}}, grpc.StatusCode.INVALID_ARGUMENT, "conversation.messages"),
        ({"text": "x", "choice_count": 17}, grpc.StatusCode.INVALID_ARGUMENT, "choice_count"),
        ({"text": "x", "sampling": {"top_p": 2}}, grpc.StatusCode.INVALID_ARGUMENT, "sampling.top_p"),
        (
            {"text": "x", "sampling": {"max_token_count": 0}},
            grpc.StatusCode.INVALID_ARGUMENT,
            "sampling.max_token_count",
        ),
        ({"text": "x", "sampling": {"logit_bias": {-1: 1}}}, grpc.StatusCode.INVALID_ARGUMENT, "sampling.logit_bias"),
        (
            {"text": "x", "sampling": {"structured_output": {"json_schema": ""}}},
            grpc.StatusCode.INVALID_ARGUMENT,
            "sampling.structured_output.json_schema",
        ),
        ({"text": "x" * 1000}, grpc.StatusCode.INVALID_ARGUMENT, "context"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_by_the_field(
    channel: grpc.Channel, fields: dict[str, Any], code: grpc.StatusCode, problem: str
) -> None:
    """With the status of generation_service.proto."""
    with pytest.raises(grpc.RpcError, match=problem) as failure:
        _generate(channel, **fields)
    assert failure.value.code() is code


def test_a_refused_field_is_named_as_google_names_them(channel: grpc.Channel) -> None:
    """BadRequest beside ErrorInfo: what libraries of every language show."""
    with pytest.raises(grpc.RpcError) as failure:
        _generate(channel, text="x", sampling={"temperature": -1})

    trailers = dict(failure.value.trailing_metadata())
    details = status_pb2.Status.FromString(trailers["grpc-status-details-bin"]).details
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert details[0].Unpack(info)
    assert details[1].Unpack(bad)
    assert (info.domain, info.reason, info.metadata["field"]) == ("baton.dev", "INVALID_FIELD", "sampling.temperature")
    (violation,) = bad.field_violations
    assert violation.field == "sampling.temperature"
    assert violation.description.startswith("expected")


def test_no_message_is_larger_than_clients_take(channel: grpc.Channel, cluster: FakeCluster) -> None:
    """Tokens that wait for a slow client come in messages of as many as fit, however long their texts are."""
    written: list[Any] = []

    async def slow(response: Any) -> None:
        written.append(response)

    async def run() -> None:
        writer = GrpcWriter(slow, lambda _: b"x" * 256, lambda: None)
        logprob = generation.TokenLogprob(token_id=7, alternatives=[generation.TokenLogprob(token_id=7)] * 20)
        for _ in range(600):
            writer.take(0, Delta("x", (7,), (logprob,)))
        writer.close()
        await writer.run()

    asyncio.run(run())
    assert [len(response.token_ids) for response in written] == [MAX_ENTRIES, MAX_ENTRIES, 600 - 2 * MAX_ENTRIES]
    assert "".join(response.text for response in written) == "x" * 600
    assert max(response.ByteSize() for response in written) < 4 << 20


def test_a_client_that_was_slow_gets_the_same_calls_in_fewer_messages() -> None:
    """Reasoning, text and calls that waited are joined, each in its field."""
    written: list[Any] = []

    async def slow(response: Any) -> None:
        written.append(response)

    async def run() -> None:
        parser = OutputFormat("hermes", "think").parser([Tool("get_weather", FUNCTION["parameters"])])
        assert parser is not None
        writer = GrpcWriter(slow, lambda _: b"", lambda: AnswerReader(parser, "hermes"))
        for letter in ANSWER:
            writer.take(0, Delta(letter, (7,), ()))
        writer.close()
        await writer.run()

    asyncio.run(run())
    (answer,) = answers(written)
    assert len(written) == -(-len(ANSWER) // MAX_ENTRIES)
    assert (answer.text, answer.reasoning) == ("Let me see.", REASONING)
    assert answer.called == [("get_weather", ARGUMENTS)] * 2


@pytest.mark.parametrize("given", ["", "mine-1"])
def test_a_request_is_named_in_the_initial_metadata(channel: grpc.Channel, given: str) -> None:
    """By the client or at random, also where it fails."""
    metadata = [("x-request-id", given)] if given else []
    calls = [
        GenerationServiceStub(channel).Generate(request, timeout=20, metadata=metadata)
        for request in (messages.GenerateRequest(text="x", sampling=LIMIT), messages.GenerateRequest())
    ]
    names = [dict(call.initial_metadata()).get("x-request-id") for call in calls]

    assert all(names)
    assert not given or names == [given, given]


def test_a_deadline_is_counted_as_one(
    channel: grpc.Channel, cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Not as a cancellation, which the client would have meant."""

    async def hang(request: Any) -> AsyncIterator[Any]:
        yield tokens(0, [echo_token(request, 0)])
        await asyncio.sleep(60)

    caplog.set_level(logging.DEBUG, logger="baton.gateway.access.admission")
    cluster.decodes[0].script = hang
    request = messages.GenerateRequest(text="hello", sampling=LIMIT)
    with pytest.raises(grpc.RpcError) as failure:
        list(GenerationServiceStub(channel).Generate(request, timeout=0.5))

    assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert cluster.decodes[0].cancelled.wait(20)
    deadline = time.monotonic() + 20
    while not any("status=DEADLINE_EXCEEDED" in record.getMessage() for record in caplog.records):
        assert time.monotonic() < deadline, "no line says so"
        time.sleep(0.01)


def test_a_prompt_is_judged_before_the_last_message(channel: grpc.Channel) -> None:
    """One entry per token from the second on."""
    sampling = {"max_token_count": 2, "temperature": 0, "prompt_logprob_count": 1}
    responses = _generate(channel, tokens={"token_ids": [97, 98, 99]}, sampling=sampling)

    judged = responses[-2].prompt_logprobs
    assert responses[-1].HasField("finished")
    assert [(entry.token_id, entry.logprob, entry.rank) for entry in judged] == [(98, -1, 1), (99, -2, 2)]
    assert [len(entry.alternatives) for entry in judged] == [1, 1]


def test_models_health_and_reflection_answer(channel: grpc.Channel, gateway: RunningGateway) -> None:
    """A client needs no generated code; once the model is served, health says so."""
    _generate(channel, text="x", sampling=LIMIT)
    models = GenerationServiceStub(channel).ListModels(messages.ListModelsRequest(), timeout=20).models
    health = health_pb2_grpc.HealthStub(channel).Check(
        health_pb2.HealthCheckRequest(service="baton.v1.GenerationService"), timeout=20
    )

    assert [(model.name, model.max_context_token_count) for model in models] == [(MODEL, CONTEXT_TOKENS)]
    assert health.status == health_pb2.HealthCheckResponse.SERVING
    assert "baton.v1.GenerationService" in ProtoReflectionDescriptorDatabase(channel).get_services()


def test_a_cancelled_call_cancels_its_generation(channel: grpc.Channel, cluster: FakeCluster) -> None:
    """At once, on the node."""

    async def hang(request: Any) -> AsyncIterator[Any]:
        yield tokens(0, [echo_token(request, 0)])
        await asyncio.sleep(60)

    cluster.decodes[0].script = hang
    call = GenerationServiceStub(channel).Generate(messages.GenerateRequest(text="hello", sampling=LIMIT), timeout=20)
    next(call)
    call.cancel()

    assert cluster.decodes[0].cancelled.wait(20)
