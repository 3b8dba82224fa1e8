"""What bodies hold beyond what is served: left out and told in every dialect, refused where it is a promise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from baton.gateway.api.tolerance import MAX_UNKNOWN_FIELDS, PROMISES
from baton.gateway.server import RunningGateway
from gateway.bodies import ROUTES, SMALLEST
from gateway.fake_cluster import FakeCluster, Loop
from gateway.rest import Reply, ask
from gateway.tool_models import TOOL, tool_folder

STREAMED = [path for path, route in ROUTES.items() if route.body and "stream" in route.body.__struct_fields__]
GENERATING = [path for path, route in ROUTES.items() if "seed" in route.unserved.promises]
HINTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "prompt_cache_retention": "24h",
        "verbosity": "low",
        "store": True,
        "service_tier": "flex",
        "prediction": {"type": "content", "content": "x"},
        "web_search_options": {},
        "reasoning_effort": "high",
    },
    "/v1/responses": {
        "prompt_cache_retention": "24h",
        "client_metadata": {"a": "b"},
        "context_management": [{"type": "compaction"}],
        "store": True,
        "truncation": "auto",
        "include": ["web_search_call.results"],
        "text": {"verbosity": "low"},
        "reasoning": {"summary": "auto", "effort": "high"},
    },
    "/v1/messages": {
        "context_management": {"edits": []},
        "output_config": {"effort": "max"},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "mcp_servers": [{"type": "url"}],
        "cache_control": {"type": "ephemeral", "ttl": "1h"},
        "speed": "fast",
    },
}
TOLD = {
    "/v1/responses": {"include[web_search_call.results]", "text.verbosity", "reasoning.summary", "reasoning.effort"},
    "/v1/messages": {"output_config.effort", "thinking.budget_tokens"},
}
_INSTEAD = {"include", "text", "reasoning", "output_config", "thinking"}


@pytest.fixture(scope="module")
def shared_loop() -> Iterator[Loop]:
    """Run an event loop in a thread."""
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model that knows tools and how to think, but not how hard."""
    return tool_folder(tmp_path_factory.mktemp("tolerant"))


@pytest.fixture(scope="module")
def tolerant(shared_loop: Loop, model_folder: Path) -> Iterator[RunningGateway]:
    """Run a gateway as it is by default."""
    with shared_loop.running(FakeCluster(model_folder, num_nodes=1)) as running:
        yield running


@pytest.fixture(scope="module")
def strict(shared_loop: Loop, model_folder: Path) -> Iterator[RunningGateway]:
    """Run a gateway with --strict."""
    with shared_loop.running(FakeCluster(model_folder, num_nodes=1), strict=True) as running:
        yield running


def _told(reply: Reply) -> list[str]:
    """Return what the answer says was left out."""
    names: list[str] = reply.body.get("baton", {}).get("ignored", [])
    return names


def _field(reply: Reply) -> str:
    """Return the parameter that an error names, in either dialect."""
    error = reply.body["error"]
    return str(error.get("param") or error["message"])


@pytest.mark.parametrize("path", ROUTES)
def test_an_invented_field_is_left_out_and_told(tolerant: RunningGateway, path: str) -> None:
    """In every dialect, as `ignored` of the answer's `baton`; without one there is no such thing."""
    reply = ask(tolerant, path, SMALLEST[path] | {"invented": {"a": [1]}})

    assert (reply.status, _told(reply)) == (200, ["invented"])
    assert _told(ask(tolerant, path, SMALLEST[path])) == []


@pytest.mark.parametrize("path", ROUTES)
def test_an_invented_field_is_refused_by_a_strict_gateway(strict: RunningGateway, path: str) -> None:
    """With 400 that names it; without it the same body is served."""
    reply = ask(strict, path, SMALLEST[path] | {"invented": 1})

    assert reply.status == 400
    assert "invented" in _field(reply)
    assert ask(strict, path, SMALLEST[path]).status == 200


@pytest.mark.parametrize("path", STREAMED)
def test_a_stream_tells_it_too(tolerant: RunningGateway, path: str) -> None:
    """Once, in an event that every client parses: the last of OpenAI's, the first of Anthropic's."""
    options = {"stream_options": {"include_usage": True}} if "completions" in path else {}
    reply = ask(tolerant, path, SMALLEST[path] | {"stream": True, "invented": 1, **options})

    lines = [line.removeprefix(b"data: ") for line in reply.data.split(b"\n") if line.startswith(b"data: {")]
    events = [json.loads(line) for line in lines]
    holders = [event.get("message") or event.get("response") or event for event in events]
    told = [holder["baton"]["ignored"] for holder in holders if "ignored" in (holder.get("baton") or {})]
    assert (reply.status, told) == (200, [["invented"]])


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x", "a": 1}] * 2}, "messages[].a"),
        (
            "/v1/responses",
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x", "a": 1}]}]},
            "input[].content[].a",
        ),
        ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "a": 1}]}]}, "a"),
        ("/tokenize", {"prompt": None, "messages": [{"role": "user", "content": "x", "a": 1}]}, "messages[].a"),
    ],
)
def test_fields_of_inner_objects_are_told_once_without_indices(
    tolerant: RunningGateway, path: str, body: dict[str, Any], name: str
) -> None:
    """However often they occur."""
    (told,) = _told(ask(tolerant, path, SMALLEST[path] | body))

    assert told.endswith(name)


@pytest.mark.parametrize("path", HINTS)
def test_hints_are_left_out_and_told(tolerant: RunningGateway, strict: RunningGateway, path: str) -> None:
    """Those that official clients send; a strict gateway refuses them one by one."""
    reply = ask(tolerant, path, SMALLEST[path] | HINTS[path])

    assert reply.status == 200, reply.data
    assert set(_told(reply)) == (HINTS[path].keys() - _INSTEAD) | TOLD.get(path, set())
    for name, value in HINTS[path].items():
        assert ask(strict, path, SMALLEST[path] | {name: value}).status == 400, name


@pytest.mark.parametrize("path", GENERATING)
def test_what_decides_on_tokens_is_refused_where_it_is_not_served(tolerant: RunningGateway, path: str) -> None:
    """By name, whichever server knows the field; values that ask for nothing are taken without a word."""
    body = ROUTES[path].body
    assert body is not None
    for name in PROMISES.keys() - set(body.__struct_fields__):
        reply = ask(tolerant, path, SMALLEST[path] | {name: "none of these"})
        assert (reply.status, name in _field(reply)) == (400, True), name
        assert _told(ask(tolerant, path, SMALLEST[path] | {name: (*PROMISES[name], None)[0]})) == [], name


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/chat/completions", {"structured_outputs": {"structural_tag": "a"}}, "structured_outputs.structural_tag"),
        ("/v1/chat/completions", {"response_format": {"type": "text", "a": 1}}, "response_format.a"),
        ("/v1/responses", {"text": {"format": {"type": "text", "a": 1}}}, "text.format.a"),
        ("/v1/responses", {"previous_response_id": "resp_1"}, "previous_response_id"),
        ("/v1/responses", {"tools": [], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ("/v1/messages", {"output_config": {"format": {"type": "json_schema", "a": 1}}}, "output_config.format.a"),
        ("/v1/messages", {"inference_geo": "eu"}, "inference_geo"),
        ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "type"),
    ],
)
def test_promises_that_would_be_broken_are_refused(
    tolerant: RunningGateway, path: str, body: dict[str, Any], name: str
) -> None:
    """Constraints, state of earlier requests, content that the model cannot see."""
    reply = ask(tolerant, path, SMALLEST[path] | body)

    assert (reply.status, name in _field(reply)) == (400, True), reply.data


@pytest.mark.parametrize(
    ("path", "tool", "name"),
    [
        ("/v1/chat/completions", {"type": "custom", "custom": {"name": "x"}}, "tools[custom]"),
        ("/v1/responses", {"type": "web_search"}, "tools[web_search]"),
        ("/v1/responses", {"type": "namespace", "name": "n", "tools": []}, "tools[namespace]"),
        ("/v1/messages", {"type": "web_search_20250305", "name": "web_search"}, "tools[web_search_20250305]"),
        ("/v1/messages/count_tokens", {"type": "mcp_toolset", "mcp_server_name": "x"}, "tools[mcp_toolset]"),
    ],
)
def test_hosted_tools_are_dropped_and_told(
    tolerant: RunningGateway, strict: RunningGateway, path: str, tool: dict[str, Any], name: str
) -> None:
    """Those beside them are served."""
    function = TOOL["function"]
    own = {"chat": TOOL, "respo": {"type": "function", **function}}.get(
        path[4:8] if "chat" in path else path[4:9],
        {"name": function["name"], "input_schema": function["parameters"]},
    )
    body = SMALLEST[path] | {"tools": [tool, own]}

    assert name in _told(ask(tolerant, path, body))
    assert ask(strict, path, body).status == 400


def test_so_many_fields_are_no_habit(tolerant: RunningGateway) -> None:
    """A bound to the work that a body makes; names that are told are bounded too."""
    few = {f"x{index}": 1 for index in range(100)}
    many = {f"x{index}": 1 for index in range(MAX_UNKNOWN_FIELDS + 1)}

    assert len(_told(ask(tolerant, "/detokenize", SMALLEST["/detokenize"] | few))) == 32
    assert ask(tolerant, "/detokenize", SMALLEST["/detokenize"] | many).status == 400


def test_it_is_counted_by_name_and_logged_once(
    loop: Loop, cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A name that is no field's shares a label."""
    caplog.set_level("INFO", "baton.gateway")
    with loop.running(cluster) as gateway:
        for name in ("seen_twice", "seen_twice", 'no"name\n'):
            assert ask(gateway, "/detokenize", {"tokens": [1], name: 1}).status == 200
        page = ask(gateway, "/metrics").data.decode()

    counts = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in page.splitlines() if "ignored" in line}
    assert counts['baton_gateway_ignored_fields_total{baton_field="seen_twice"}'] == "2"
    assert counts['baton_gateway_ignored_fields_total{baton_field="other"}'] == "1"
    assert [record.message for record in caplog.records if "seen_twice" in record.message] == [
        "field_ignored field='seen_twice' route=/detokenize"
    ]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_a_prompt_cache_key_reaches_the_router(loop: Loop, cluster: FakeCluster, path: str) -> None:
    """As a digest, whatever its length; none without one."""
    with loop.running(cluster) as gateway:
        for key in ("a", "a", "b" * 1000, None):
            assert _told(ask(gateway, path, SMALLEST[path] | {"prompt_cache_key": key})) == []

    sessions = [request.session for request in cluster.router.requests]
    assert len(set(sessions)) == 3
    assert sessions[0] == sessions[1]
    assert [len(session) for session in sessions] == [16, 16, 16, 0]


def test_reasoning_comes_back_as_clients_send_it(tolerant: RunningGateway) -> None:
    """`reasoning.encrypted_content` of an answer, which other servers' cannot replace."""
    items = [{"role": "user", "content": "x"}, {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}]
    reply = ask(tolerant, "/v1/responses", SMALLEST["/v1/responses"] | {"input": items})

    assert (reply.status, _told(reply)) == (200, ["input[].encrypted_content"])


def test_a_tool_is_named_by_its_place_among_all_that_were_sent(loop: Loop, model_folder: Path) -> None:
    """Also behind one that is dropped: where its name is wrong, and where its schema cannot be strict."""
    named, strict = {"type": "function", "name": "a b"}, {"type": "function", "name": "f", "strict": True}
    strict["parameters"] = {"type": "object", "properties": {"x": {"type": "string", "pattern": "a+"}}}
    with loop.running(FakeCluster(model_folder, num_nodes=1), tool_call_parser="qwen_coder") as gateway:
        bodies = (SMALLEST["/v1/responses"] | {"tools": [{"type": "web_search"}, tool]} for tool in (named, strict))
        fields = [_field(ask(gateway, "/v1/responses", body)) for body in bodies]

    assert fields == ["tools[1].name", "tools[1].parameters.properties.x.pattern"]
