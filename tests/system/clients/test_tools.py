"""Tools end to end, on both engines in `make matrix`: official clients make a model call, whole and streamed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import anthropic
import grpc
import openai
import pydantic
import pytest

from baton.v1 import generation_pb2 as generation
from baton.v1 import generation_service_pb2 as messages
from baton.v1.generation_service_pb2_grpc import GenerationServiceStub
from gateway.grpc_answer import answers
from order import RUNS_ALL
from system.clients.tool_checkpoint import tool_checkpoint
from system.cluster import Cluster
from system.plan import MODEL_NAME, EngineName
from system.rest import CHAT_PATH, post

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Oslo", "Zürich"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
FUNCTION: dict[str, Any] = {"name": "get_weather", "description": "Tells the weather.", "parameters": PARAMETERS}
OTHER: Any = {"type": "function", "function": {"name": "now"}}
QUESTION: list[Any] = [{"role": "user", "content": "Will it rain?"}]
CHAT: dict[str, Any] = {
    "model": MODEL_NAME,
    "messages": QUESTION,
    "tools": [{"type": "function", "function": FUNCTION}, OTHER],
    "temperature": 1.0,
    "seed": 3,
    "max_tokens": 300,
}
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture(scope="module", params=["torch", "mlx"] if RUNS_ALL else ["torch"])
def tool_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run the model on one engine."""
    engine: EngineName = request.param
    if engine == "mlx" and importlib.util.find_spec("mlx_lm") is None:
        pytest.skip("MLX is not installed")
    with Cluster(tool_checkpoint(tmp_path_factory.mktemp("tools")), prefill=(), decode=(engine,)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(tool_cluster: Cluster) -> Iterator[openai.OpenAI]:
    """Return the client as a user makes it."""
    with openai.OpenAI(base_url=tool_cluster.base_url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def _is_weather(arguments: Any) -> bool:
    return set(arguments) == {"city", "days"} and arguments["city"] in ("Paris", "Oslo", "Zürich")


def test_a_named_function_is_called(client: openai.OpenAI) -> None:
    """With arguments that follow its schema, though the model knows nothing of tools."""
    choice = client.chat.completions.create(**CHAT, tool_choice=NAMED).choices[0]

    calls: Any = choice.message.tool_calls
    assert (choice.finish_reason, choice.message.content, len(calls)) == ("tool_calls", None, 1)
    assert calls[0].function.name == "get_weather"
    assert _is_weather(json.loads(calls[0].function.arguments))


def test_a_streamed_call_equals_the_whole_one(client: openai.OpenAI) -> None:
    """By the client's own helper; the seed is the same."""
    whole: Any = client.chat.completions.create(**CHAT, tool_choice=NAMED).choices[0].message.tool_calls
    with client.chat.completions.stream(**CHAT, tool_choice=NAMED) as stream:
        streamed: Any = stream.get_final_completion().choices[0].message.tool_calls

    assert [call.function.arguments for call in streamed] == [call.function.arguments for call in whole]


def test_any_of_the_tools_may_be_required(client: openai.OpenAI) -> None:
    """At least one call, each of a tool that was declared."""
    options = CHAT | {"tool_choice": "required", "n": 4, "parallel_tool_calls": False}
    choices = client.chat.completions.create(**options).choices

    names = [call.function.name for choice in choices for call in choice.message.tool_calls or ()]  # type: ignore[union-attr]
    assert len(names) == 4
    assert set(names) <= {"get_weather", "now"}


def test_a_model_that_is_free_answers_in_text(client: openai.OpenAI) -> None:
    """As this one always does; a strict tool changes nothing about that."""
    strict = {"type": "function", "function": FUNCTION | {"strict": True}}
    message = client.chat.completions.create(**(CHAT | {"tools": [strict], "max_tokens": 20})).choices[0].message

    assert message.tool_calls is None
    assert message.content


class Weather(pydantic.BaseModel):
    """Arguments as a user declares them."""

    city: Literal["Paris", "Oslo"]
    days: Annotated[int, pydantic.Field(ge=1, le=9)] | None


def test_the_client_parses_arguments_of_a_declared_model(client: openai.OpenAI) -> None:
    """Its own helper sends a strict schema, and gets an object back."""
    tool = openai.pydantic_function_tool(Weather)
    choice: Any = {"type": "function", "function": {"name": "Weather"}}
    options = CHAT | {"tools": [tool], "tool_choice": choice}
    (call,) = client.chat.completions.parse(**options).choices[0].message.tool_calls or ()

    assert isinstance(call.function.parsed_arguments, Weather)


def test_a_response_calls(client: openai.OpenAI) -> None:
    """Streamed by events that the client puts together."""
    tool: Any = {"type": "function", **FUNCTION}
    choice: Any = {"type": "function", "name": "get_weather"}
    options: Any = {
        "model": MODEL_NAME,
        "input": "Rain?",
        "tools": [tool],
        "tool_choice": choice,
        "max_output_tokens": 300,
    }
    with client.responses.stream(**options) as stream:
        (item,) = stream.get_final_response().output

    assert item.type == "function_call"
    assert _is_weather(json.loads(item.arguments))


def test_a_message_calls(tool_cluster: Cluster) -> None:
    """In Anthropic's words, whole and streamed."""
    tool: Any = {"name": "get_weather", "input_schema": PARAMETERS}
    options: Any = {
        "model": MODEL_NAME,
        "max_tokens": 300,
        "messages": QUESTION,
        "tools": [tool],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    }
    url = tool_cluster.base_url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        whole = client.messages.create(**options)
        with client.messages.stream(**options) as stream:
            streamed = stream.get_final_message()

    for message in (whole, streamed):
        (block,) = message.content
        assert message.stop_reason == "tool_use"
        assert block.type == "tool_use"
        assert _is_weather(block.input)


def _rest_loop(client: openai.OpenAI) -> list[Any]:
    """Call, send the result, and call again, over REST; return prompts' and outputs' tokens, and the calls."""
    turns, seen = list(QUESTION), []
    for _ in range(3):
        body: Any = client.chat.completions.create(
            **CHAT | {"messages": turns}, tool_choice="required", extra_body={"return_token_ids": True}
        )
        (choice,), calls = body.choices, body.choices[0].message.tool_calls
        called = [(call.function.name, call.function.arguments) for call in calls]
        seen.append((body.usage.prompt_tokens, choice.token_ids, called, choice.finish_reason))
        turns.append(choice.message.model_dump(exclude_none=True))
        turns += [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in calls]
    return seen


def _grpc_loop(address: str) -> list[Any]:
    """The same over gRPC."""
    turns, seen = list(QUESTION), []
    tools = [FUNCTION | {"parameters": json.dumps(PARAMETERS)}, {"name": "now"}]
    sampling = {"temperature": CHAT["temperature"], "seed": CHAT["seed"], "max_token_count": CHAT["max_tokens"]}
    with grpc.insecure_channel(address) as channel:
        stub = GenerationServiceStub(channel)  # type: ignore[no-untyped-call]
        for _ in range(3):
            conversation = {"messages": turns, "tools": tools, "tool_choice": {"mode": "TOOL_MODE_REQUIRED"}}
            request = messages.GenerateRequest(conversation=conversation, sampling=sampling)  # type: ignore[arg-type]
            (answer,) = answers(stub.Generate(request, timeout=60))
            reason = generation.FinishReason.Name(answer.end.reason).removeprefix("FINISH_REASON_").lower()
            seen.append((answer.end.usage.prompt_token_count, answer.token_ids, answer.called, reason))
            turns.append({"role": "assistant", "content": answer.text, "tool_calls": answer.calls})
            turns += [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in answer.calls]
    return seen


def test_an_agents_loop_over_grpc_is_the_one_over_rest(client: openai.OpenAI, tool_cluster: Cluster) -> None:
    """The same prompts, the same tokens, the same calls."""
    over_rest = _rest_loop(client)

    assert _grpc_loop(tool_cluster.grpc_address) == over_rest
    assert all(called for _, _, called, _ in over_rest)


def test_a_schema_that_cannot_be_enforced_is_refused(tool_cluster: Cluster) -> None:
    """By the name of what carries it, where a call is forced."""
    function = {"name": "f", "parameters": {"type": "object", "properties": {"x": {"not": {"type": "string"}}}}}
    body = CHAT | {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}

    assert post(tool_cluster, CHAT_PATH, body).error == (400, "tools", "invalid_value")


def test_the_client_for_node_calls(tool_cluster: Cluster, node_folder: Path) -> None:
    """The same call whole, put together from deltas, and by the client's own helper."""
    request = {name: value for name, value in CHAT.items() if name != "model"} | {"tool_choice": NAMED}
    status, answer = _run_node(tool_cluster, node_folder, request)

    assert (status, answer["finish_reason"]) == (0, "tool_calls")
    assert answer["whole"] == answer["streamed"] == answer["helped"]
    assert answer["whole"]["name"] == "get_weather"
    assert _is_weather(json.loads(answer["whole"]["arguments"]))


def test_the_client_for_node_gets_refusals_by_name(tool_cluster: Cluster, node_folder: Path) -> None:
    """Status, parameter and code."""
    status, answer = _run_node(tool_cluster, node_folder, {"messages": QUESTION, "tools": [OTHER, OTHER]})

    assert status == 1
    assert answer["error"] == {"status": 400, "param": "tools[1].function.name", "code": "invalid_value"}


def _run_node(cluster: Cluster, folder: Path, request: object) -> tuple[int, Any]:
    command = ("node", "tools.js", "--url", cluster.base_url, "--model", MODEL_NAME, "--request", json.dumps(request))
    finished = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500)
    assert finished.stderr == ""
    return finished.returncode, json.loads(finished.stdout)
