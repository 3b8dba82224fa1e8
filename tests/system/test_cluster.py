"""What tests are told of a cluster whose router is slow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from baton.internal.v1.node_pb2 import NodeDescription
from baton.internal.v1.router_service_pb2 import NodeState
from system.cluster import Cluster


def test_a_node_is_asked_for_until_the_router_tells_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it does not answer, and where that node has not registered yet."""
    states = [NodeState(node=NodeDescription(node_id=name)) for name in ("prefill-0", "decode-0")]
    answers = iter(({}, {"prefill-0": states[0]}, {"prefill-0": states[0], "decode-0": states[1]}))

    def nodes(_cluster: Cluster) -> Mapping[str, NodeState]:
        return next(answers)

    monkeypatch.setattr(Cluster, "nodes", nodes)
    cluster = Cluster(Path())
    cluster.processes = {}  # none is started

    found = cluster.node("decode-0")

    assert found == states[1]
    cluster.stop()
