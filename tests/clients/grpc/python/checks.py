"""Twenty checks of baton.v1 from Python: python checks.py NAME ...; a line of JSON for each."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from google.rpc.status_pb2 import Status
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from baton.v1 import generation_pb2 as v1
from baton.v1 import generation_service_pb2 as api
from baton.v1.generation_service_pb2_grpc import GenerationServiceStub

ADDRESS, MODEL = os.environ["BATON_GRPC"], os.environ["BATON_MODEL"]
SERVICE = "baton.v1.GenerationService"
QUESTION, ANSWER = "What is 12 + 30?", "12 + 30 = 42"
SUM = '{"type":"object","properties":{"answer":{"type":"integer"}},"required":["answer"],"additionalProperties":false}'
WEATHER = (
    '{"type":"object","properties":{"city":{"enum":["Paris","Oslo"]}},"required":["city"],"additionalProperties":false}'
)

channel = grpc.insecure_channel(ADDRESS)
stub = GenerationServiceStub(channel)


def chat(*turns: api.ChatMessage, **conversation: Any) -> api.Conversation:
    """Return a conversation that ends with the question, or with these turns."""
    messages = turns or (api.ChatMessage(role="user", content=QUESTION),)
    return api.Conversation(messages=messages, **conversation)


def ask(limit: int = 64, stop: tuple[str, ...] = (), ignore_eos: bool = False, **fields: Any) -> api.GenerateRequest:
    """Return a request at temperature 0, for the question unless `fields` have another input."""
    own = {name: fields.pop(name) for name in ("top_logprob_count", "structured_output") if name in fields}
    sampling = v1.SamplingParameters(temperature=0, max_token_count=limit, ignore_eos=ignore_eos, **own)
    given = fields if fields.keys() & {"text", "tokens", "conversation"} else {"conversation": chat(), **fields}
    return api.GenerateRequest(model=MODEL, sampling=sampling, stop=stop, **given)


def text_of(parts: Iterable[api.GenerateResponse]) -> str:
    """Return the text of a stream."""
    return "".join(part.text for part in parts)


def end_of(parts: list[api.GenerateResponse]) -> api.GenerationEnd:
    """Return how a stream ended."""
    return parts[-1].finished


def long() -> api.GenerateRequest:
    """Return a request that would take long."""
    return ask(3000, ignore_eos=True)


def expect(actual: object, expected: object) -> None:
    """Raise where two values differ."""
    if actual != expected:
        raise AssertionError(f"expected {expected!r}, got {actual!r}")


def failure(call: Callable[[], object]) -> tuple[str, str, str]:
    """Return a refused call's code, reason and field."""
    try:
        call()
    except grpc.RpcError as error:
        info, fields, status = ErrorInfo(), BadRequest(), Status()
        status.ParseFromString(dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b""))
        for detail in status.details:
            detail.Unpack(info)
            detail.Unpack(fields)
        named = [violation.field for violation in fields.field_violations]
        expect(named, [info.metadata["field"]] if "field" in info.metadata else [])
        return error.code().name, info.reason, info.metadata.get("field", "")
    raise AssertionError("it was not refused")


def models() -> None:
    """The list has the model that is served."""
    (model,) = stub.ListModels(api.ListModelsRequest()).models
    expect((model.name, model.max_context_token_count > 0), (MODEL, True))


def conversation() -> None:
    """Its text is the answer."""
    expect(text_of(stub.Generate(ask())), ANSWER)


def text() -> None:
    """Continued without a template."""
    expect(end_of(list(stub.Generate(ask(8, text="What is", ignore_eos=True)))).usage.completion_token_count, 8)


def tokens() -> None:
    """Given as they are, they are continued as their text."""
    ids = stub.Tokenize(api.TokenizeRequest(text="What is")).token_ids
    given = stub.Generate(ask(8, tokens=api.TokenSequence(token_ids=ids)))
    expect(text_of(given), text_of(stub.Generate(ask(8, text="What is"))))


def stream() -> None:
    """Many parts, and one end."""
    parts = list(stub.Generate(ask(48, ignore_eos=True)))
    expect((len(parts) > 8, [part.HasField("finished") for part in parts].count(True)), (True, 1))


def usage() -> None:
    """Counts are those of the tokens that came."""
    parts = list(stub.Generate(ask()))
    end, num_tokens = end_of(parts), sum(len(part.token_ids) for part in parts)
    expect((end.usage.completion_token_count, end.usage.prompt_token_count > 0), (num_tokens, True))
    expect((end.reason, end.placement.decode_node_id != ""), (v1.FINISH_REASON_STOP, True))


def logprobs() -> None:
    """One for each token, with its text and alternatives."""
    parts = list(stub.Generate(ask(top_logprob_count=2)))
    entries = [entry for part in parts for entry in part.logprobs]
    expect(len(entries), end_of(parts).usage.completion_token_count)
    expect({len(entry.alternatives) for entry in entries}, {2})
    expect("".join(entry.text for entry in entries[:-1]), ANSWER)


def stop() -> None:
    """Cut from the text, named, and counted as it came."""
    parts = list(stub.Generate(ask(stop=("=",))))
    expect((text_of(parts), end_of(parts).stop), ("12 + 30 ", "="))
    expect(sum(len(part.token_ids) for part in parts), end_of(parts).usage.completion_token_count)


def structured() -> None:
    """Text of a schema."""
    form = v1.StructuredOutput(json_schema=SUM)
    expect(list(json.loads(text_of(stub.Generate(ask(300, structured_output=form))))), ["answer"])


def call() -> api.ToolCall:
    """Return a call of the tool, put together from what is streamed."""
    tool = api.Tool(name="get_weather", description="Tells the weather.", parameters=WEATHER)
    asked = chat(tools=[tool], tool_choice=api.ToolChoice(name="get_weather"))
    parts = list(stub.Generate(ask(300, conversation=asked)))
    deltas = [delta for part in parts for delta in part.tool_calls]
    expect(end_of(parts).reason, v1.FINISH_REASON_TOOL_CALLS)
    arguments = "".join(delta.arguments for delta in deltas)
    return api.ToolCall(id=deltas[0].id, name=deltas[0].name, arguments=arguments)


def tools() -> None:
    """A call with arguments of its schema."""
    called = call()
    expect((called.name, json.loads(called.arguments)["city"] in ("Paris", "Oslo")), ("get_weather", True))


def loop() -> None:
    """What a tool gave back is taken."""
    called = call()
    asked = chat(
        api.ChatMessage(role="user", content=QUESTION),
        api.ChatMessage(role="assistant", tool_calls=[called]),
        api.ChatMessage(role="tool", tool_call_id=called.id, content="sunny"),
    )
    parts = list(stub.Generate(ask(conversation=asked)))
    expect((end_of(parts).usage.completion_token_count > 0, len(parts[0].tool_calls)), (True, 0))


def errors() -> None:
    """Code, reason and field."""
    wrong = ask()
    wrong.sampling.temperature = -1
    refused = ("INVALID_ARGUMENT", "INVALID_FIELD", "sampling.temperature")
    expect(failure(lambda: list(stub.Generate(wrong))), refused)
    unknown = ask()
    unknown.model = "gpt"
    expect(failure(lambda: list(stub.Generate(unknown)))[:2], ("NOT_FOUND", "MODEL_NOT_FOUND"))


def deadline() -> None:
    """The call ends when it comes."""
    started = time.monotonic()
    expect(failure(lambda: list(stub.Generate(long(), timeout=0.3)))[0], "DEADLINE_EXCEEDED")
    expect(time.monotonic() - started < 3, True)


def cancel() -> None:
    """The stream ends at once."""
    parts = stub.Generate(long())
    for _ in range(4):
        next(parts)
    parts.cancel()
    expect(failure(lambda: list(parts))[0], "CANCELLED")


def streams() -> None:
    """Fifty on one connection."""
    with ThreadPoolExecutor(50) as pool:
        texts = list(pool.map(lambda _: text_of(stub.Generate(ask(16))), range(50)))
    expect(texts, [ANSWER] * 50)


def health() -> None:
    """As grpc.health.v1 has it."""
    asked = health_pb2.HealthCheckRequest(service=SERVICE)
    expect(health_pb2_grpc.HealthStub(channel).Check(asked).status, health_pb2.HealthCheckResponse.SERVING)


def reflection() -> None:
    """The service lists itself."""
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    (answer,) = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([asked]))
    expect(SERVICE in [each.name for each in answer.list_services_response.service], True)


def tls_key() -> None:
    """With both an answer, without the key none."""
    credentials = grpc.ssl_channel_credentials(Path(os.environ["BATON_CA"]).read_bytes())
    with grpc.secure_channel(os.environ["BATON_GRPC_TLS"], credentials) as secure:
        other = GenerationServiceStub(secure)
        metadata = [("authorization", f"Bearer {os.environ['BATON_KEY']}")]
        expect(text_of(other.Generate(ask(), metadata=metadata)), ANSWER)
        expect(failure(lambda: list(other.Generate(ask())))[:2], ("UNAUTHENTICATED", "INVALID_API_KEY"))


def keepalive() -> None:
    """Pings on an idle connection do no harm."""
    options = [("grpc.keepalive_time_ms", 1000), ("grpc.keepalive_permit_without_calls", 1)]
    with grpc.insecure_channel(ADDRESS, options) as pinging:
        other = GenerationServiceStub(pinging)
        expect(text_of(other.Generate(ask())), ANSWER)
        time.sleep(4)  # pings go out meanwhile
        expect(text_of(other.Generate(ask())), ANSWER)


def request_id() -> None:
    """It comes back, in metadata and at the end."""
    called = stub.Generate(ask(), metadata=[("x-request-id", "python-1")])
    expect(dict(called.initial_metadata())["x-request-id"], "python-1")
    expect(end_of(list(called)).request_id, "python-1")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        started = time.monotonic()
        line: dict[str, Any] = {"feature": name}
        try:
            globals()[name]()
        except Exception as error:
            line["error"] = f"{type(error).__name__}: {error}"[:400]
        print(json.dumps({**line, "seconds": round(time.monotonic() - started, 2)}), flush=True)
