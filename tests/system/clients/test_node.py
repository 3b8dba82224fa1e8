"""A gRPC client in another language, Node, that knows nothing but the .proto files or what the server tells it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from system.cluster import Cluster

_PROTOS = Path(__file__).parents[3] / "protos"
_GREEDY = json.dumps({"temperature": 0, "max_token_count": 16, "ignore_eos": True})
_RUN_SECONDS = 180

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
    """Text and tokens, in as many messages as they come in, then how it ended, what it used and where it ran."""
    status, lines = _generate(node_folder, demo_cluster, *DEFINITIONS[definition], *question, "--sampling", _GREEDY)
    *deltas, last = lines

    assert status == 0
    assert all(delta.keys() == {"text", "token_ids"} for delta in deltas)
    usage = last["finished"]["usage"]
    assert sum(len(delta["token_ids"]) for delta in deltas) == usage["completion_token_count"] == 16
    assert last["finished"]["reason"] == "FINISH_REASON_LENGTH"
    assert last["finished"]["placement"]["decode_node_id"] == "decode-0"
    if question[0] == "--messages":
        assert "42" in "".join(delta["text"] for delta in deltas)


def test_a_node_client_takes_what_it_wants_of_a_stream_and_leaves(node_folder: Path, demo_cluster: Cluster) -> None:
    """Two messages of a generation that would fill the context; its nodes are idle again soon."""
    endless = json.dumps({"temperature": 0, "max_token_count": 4000, "ignore_eos": True})
    definition = DEFINITIONS["protos"]
    status, lines = _generate(
        node_folder, demo_cluster, *definition, "--text", "abc", "--sampling", endless, "--take", "2"
    )

    assert status == 0
    assert [line.keys() for line in lines] == [{"text", "token_ids"}] * 2
    demo_cluster.wait_idle()


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_a_node_client_gets_errors_in_full(node_folder: Path, demo_cluster: Cluster, definition: str) -> None:
    """Code, reason and field arrive through google.rpc.Status."""
    arguments = (*DEFINITIONS[definition], "--text", "abc", "--sampling", '{"temperature": -1}')
    status, (answer,) = _generate(node_folder, demo_cluster, *arguments)

    assert status == 1
    assert answer["error"] == {
        "code": "INVALID_ARGUMENT",
        "reason": "INVALID_FIELD",
        "field": "sampling.temperature",
        "details": "sampling.temperature: expected 0 to 100, got -1.0",
    }


def _generate(folder: Path, cluster: Cluster, *arguments: str) -> tuple[int, list[Any]]:
    command = ("node", "generate.js", "--address", cluster.grpc_address, *arguments)
    finished = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_RUN_SECONDS)
    assert finished.stderr == ""
    return finished.returncode, [json.loads(line) for line in finished.stdout.splitlines()]
