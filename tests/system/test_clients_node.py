"""A gRPC client in another language, Node, that knows nothing but the .proto files or what the server tells it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from system.cluster import Cluster

_PROTOS = Path(__file__).parents[2] / "protos"
_GREEDY = json.dumps({"temperature": 0, "max_token_count": 128, "ignore_eos": True})
_RUN_SECONDS = 60

DEFINITIONS = {"protos": ("--protos", str(_PROTOS)), "reflection": ("--reflection",)}
"""Where the client has the service's definition from."""


@pytest.mark.parametrize("definition", DEFINITIONS)
@pytest.mark.parametrize(
    "question",
    [
        ("--text", "abc"),
        ("--messages", json.dumps([{"role": "user", "content": "What is 12 + 30?"}])),
        ("--tokens", "20,21,22,23"),
    ],
)
def test_a_node_client_streams_a_generation(
    node_folder: Path, demo_cluster: Cluster, definition: str, question: Sequence[str]
) -> None:
    """Text and tokens come in pieces, then how it ended, what it used and where it ran."""
    status, lines = _generate(node_folder, demo_cluster, *DEFINITIONS[definition], *question, "--sampling", _GREEDY)
    *deltas, last = lines

    assert status == 0
    assert len(deltas) >= 2  # a busy machine may send many tokens at once, but not all of so many
    assert all(delta.keys() == {"text", "token_ids"} for delta in deltas)
    usage = last["finished"]["usage"]
    assert sum(len(delta["token_ids"]) for delta in deltas) == usage["completion_token_count"] == 128
    assert last["finished"]["reason"] == "FINISH_REASON_LENGTH"
    assert last["finished"]["placement"]["decode_node_id"] == "decode-0"
    if question[0] == "--messages":
        assert "42" in "".join(delta["text"] for delta in deltas)


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_a_node_client_gets_errors_in_full(node_folder: Path, demo_cluster: Cluster, definition: str) -> None:
    """Code, reason and field arrive through google.rpc.Status."""
    arguments = (*DEFINITIONS[definition], "--text", "abc", "--sampling", '{"temperature": -1}')
    status, (answer,) = _generate(node_folder, demo_cluster, *arguments)

    assert status == 1
    assert answer["error"] == {
        "code": "INVALID_ARGUMENT",
        "reason": "INVALID_FIELD",
        "field": "temperature",
        "details": "temperature: expected 0 to 100, got -1.0",
    }


def _generate(folder: Path, cluster: Cluster, *arguments: str) -> tuple[int, list[Any]]:
    command = ("node", "generate.js", "--address", cluster.grpc_address, *arguments)
    finished = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_RUN_SECONDS)
    assert finished.stderr == ""
    return finished.returncode, [json.loads(line) for line in finished.stdout.splitlines()]
