"""Answers have the fields that their schemas declare: what the table of dialects and /openapi.json tell of is all."""

from __future__ import annotations

from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import pytest

from baton.gateway.server import RunningGateway
from gateway.api.parameters.body_fields import field_paths
from gateway.bodies import ROUTES, SMALLEST
from gateway.fake_cluster import FakeCluster
from gateway.rest import ask
from gateway.tool_models import ANSWER, FUNCTION, TOOL, tool_cluster, tool_folder

_FUNCTION = {"type": "function", **FUNCTION}
_TOLD = {"return_token_ids": True, "prompt_logprobs": 1, "invented": 1, "n": 2, "stop": "weather: x", "max_tokens": 999}
_ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {**_TOLD, "tools": [TOOL], "logprobs": True, "top_logprobs": 2},
    "/v1/completions": {**_TOLD, "logprobs": 2},
    "/v1/responses": {
        "tools": [_FUNCTION],
        "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
        "max_output_tokens": 999,
    },
    "/v1/messages": {
        "tools": [{"name": FUNCTION["name"], "input_schema": FUNCTION["parameters"]}],
        "max_tokens": 999,
        "invented": 1,
    },
}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder whose template knows tools and reasoning."""
    return tool_folder(tmp_path_factory.mktemp("tools"))


@pytest.fixture
def cluster(model_dir: Path) -> FakeCluster:
    """Return a cluster whose context has room for tools."""
    return tool_cluster(model_dir, ANSWER, num_nodes=1)


@pytest.mark.parametrize("path", _ASKED)
def test_an_answer_has_no_field_that_its_schema_lacks(gateway: RunningGateway, path: str) -> None:
    """With all that can be told of tokens, calls and reasoning."""
    reply = ask(gateway, path, SMALLEST[path] | _ASKED[path])

    assert reply.status == 200, reply.data
    declared = set(field_paths(ROUTES[path].returns))
    assert list(_undeclared(reply.body, "", declared)) == []


def _undeclared(value: Any, path: str, declared: Set[str]) -> Iterator[str]:
    if isinstance(value, dict):
        for key, child in value.items():
            name = f"{path}.{key}" if path else key
            if name not in declared:
                yield name
            elif any(other.startswith((f"{name}.", f"{name}[")) for other in declared):
                yield from _undeclared(child, name, declared)
    elif isinstance(value, list):
        for item in value:
            kind = f"[{item.get('type', '')}]" if isinstance(item, dict) else "[]"
            is_told_apart = any(other.startswith(f"{path}{kind}") for other in declared)
            yield from _undeclared(item, f"{path}{kind if is_told_apart else '[]'}", declared)
