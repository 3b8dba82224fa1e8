"""`baton doctor`: what it finds out and what it says of it."""

from __future__ import annotations

import asyncio
import io
import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from baton.capacity.cost import CostEstimate
from baton.capacity.kv_transfer import WireEstimate, WireOption, WireReason
from baton.capacity.placement import Candidate
from baton.cli.cluster.advice import advise
from baton.cli.cluster.diagnosis import Diagnosis, NodeFinding, PairFinding, diagnose
from baton.cli.doctor import as_json, nodes_table, wires_table
from baton.internal.v1 import node_pb2, router_service_pb2
from baton.rpc.server import GrpcServer
from baton.security.authority import certificate_request, create_authority, create_key
from baton.security.tls import TlsIdentity, secured_by
from baton.wire.quantities import candidate_to_proto
from cli.commands import baton
from router.samples import DGX, MAC, description_to_proto
from system.plan import free_ports

OWN = WireOption("bfloat16", 1000, 1000)
INT8 = WireOption("int8", 516, 516, 1e-6, 1e-6, key_loss=2e-4, value_loss=1e-4)
FP8 = WireOption("fp8", 516, 516, 1e-6, 1e-6, key_loss=math.inf, value_loss=math.inf)
WIRE = WireEstimate("bfloat16", "bfloat16", 1 << 20, 1 << 20, 0.5, 0.5, 0.0, 0.0, WireReason.NO_LOSS_ALLOWED.value)
SLOW = CostEstimate(0.0, 0.2, 1.0, 0.8, 0.2, 1.0, 0.01, 10.0, 0.0)
LOCAL = CostEstimate(0.0, 0.5, 0.0, 0.0, 0.5, 0.5, 0.01, 10.0, 0.0)
PAIR = PairFinding(
    "dgx",
    "mac",
    True,
    2e6,
    1e-3,
    (OWN, INT8, FP8),
    Candidate("mac", "dgx", estimate=SLOW, wire=WIRE),
    Candidate("mac", "", estimate=LOCAL),
)
NODE = NodeFinding("dgx", "prefill", "127.0.0.1:1", True, "127.0.0.1:2", True, 1e9, 1e-3)
DIAGNOSIS = Diagnosis("127.0.0.1:8010", "llama", 1024, 5e9, 2e9, (NODE,), (PAIR,))


def test_it_says_what_is_used_why_and_what_a_loss_would_buy() -> None:
    """A slow link without an allowed loss: lossless, local wins, and int8, which has a measured loss, would help."""
    text = " ".join(advise(DIAGNOSIS))

    assert "K as bfloat16" in text
    assert WireReason.NO_LOSS_ALLOWED.value in text
    assert "Local prefill wins by 500 ms" in text
    assert "a loss of 0.0003 nats (BATON_ROUTER_KV_ALLOWED_LOSS) would let KV travel as int8: 48% fewer bytes" in text


def test_where_the_link_keeps_up_it_proposes_no_loss() -> None:
    """Remote prefill wins then; nothing is gained by rounding."""
    fast = replace(SLOW, transfer_seconds=0.1, exposed_seconds=0.01, start_seconds=0.21)
    pair = replace(PAIR, remote=Candidate("mac", "dgx", estimate=fast, wire=replace(WIRE, reason="it keeps up")))
    text = " ".join(advise(replace(DIAGNOSIS, pairs=(pair,))))

    assert "Remote prefill wins by 290 ms" in text
    assert "nats" not in text


def test_problems_come_first_and_make_it_unhealthy() -> None:
    """A node that does not answer, nodes that do not match, and a cluster without a pair."""
    broken = replace(DIAGNOSIS, nodes=(replace(NODE, problem="nothing answers"),))
    mismatched = replace(DIAGNOSIS, pairs=(replace(PAIR, problem="KV layouts differ in dtype"),))
    lonely = replace(DIAGNOSIS, pairs=())

    assert DIAGNOSIS.is_healthy
    assert not any(each.is_healthy for each in (broken, mismatched, lonely))
    assert advise(broken)[0] == "dgx: nothing answers."
    assert advise(mismatched) == ["dgx → mac: cannot be used: KV layouts differ in dtype."]
    assert "no two nodes" in advise(lonely)[0]


def test_the_document_is_json_and_what_nobody_measured_is_null() -> None:
    """Infinity is no number of JSON."""
    document = json.loads(as_json(DIAGNOSIS), parse_constant=lambda name: pytest.fail(name))

    assert document["is_healthy"] is True
    assert document["pairs"][0]["options"][2]["key_loss"] is None
    assert document["advice"] == advise(DIAGNOSIS)


def test_the_tables_show_formats_with_cost_and_loss() -> None:
    """And which is used."""
    stream = io.StringIO()
    console = Console(file=stream, width=200, color_system=None)
    console.print(nodes_table(DIAGNOSIS.nodes))
    console.print(wires_table(DIAGNOSIS.pairs))
    text = " ".join(stream.getvalue().split())

    assert "dgx prefill 127.0.0.1:1 yes reachable" in text
    assert "bfloat16 2000 - 0 0 K and V" in text
    assert "int8 1032 1 s/GB 2.0e-04 nats 1.0e-04 nats -" in text.replace("1e+00", "1")
    assert "fp8 1032 1 s/GB unknown unknown -" in text.replace("1e+00", "1")


class Router:
    """Answers as a router whose nodes are behind a closed port."""

    def __init__(self, port: int, *links: node_pb2.LinkMeasurement) -> None:
        self._address = f"127.0.0.1:{port}"
        self._links = links

    async def ListNodes(self, _request: Any, timeout: float) -> router_service_pb2.ListNodesResponse:  # noqa: N802, ASYNC109
        """List both nodes."""
        assert timeout > 0
        nodes = [replace(node, address=self._address, fast_address=self._address) for node in (DGX, MAC)]
        states = [router_service_pb2.NodeState(node=description_to_proto(node), links=self._links) for node in nodes]
        return router_service_pb2.ListNodesResponse(nodes=states)

    async def Place(self, request: Any, timeout: float) -> router_service_pb2.PlaceResponse:  # noqa: N802, ASYNC109
        """Give the pinned candidates."""
        assert timeout > 0
        assert request.is_dry_run
        candidates = [candidate_to_proto(candidate) for candidate in (PAIR.remote, PAIR.local) if candidate]
        return router_service_pb2.PlaceResponse(candidates=candidates)


def test_a_node_that_cannot_be_reached_is_named_with_its_address() -> None:
    """The rest is diagnosed all the same."""
    port = free_ports(["nobody"])["nobody"]
    stub: Any = Router(port)
    diagnosis = asyncio.run(asyncio.wait_for(diagnose(stub, "router", num_prompt_tokens=9, max_tokens=1), 40))

    assert diagnosis is not None
    assert not diagnosis.is_healthy
    assert [f"127.0.0.1:{port}" in node.problem for node in diagnosis.nodes] == [True, True]
    assert [(pair.prefill_node_id, pair.is_measured) for pair in diagnosis.pairs] == [("dgx", False)]
    assert diagnosis.pairs[0].remote is not None
    assert "nobody has measured" in advise(diagnosis)[2]
    assert min(diagnosis.copy_bytes_per_second, diagnosis.checksum_bytes_per_second) > 0


def test_a_node_that_answers_where_it_has_to_is_no_problem() -> None:
    """In Kubernetes only nodes that decode may connect to those that prefill: the link that they measured counts."""
    port = free_ports(["nobody"])["nobody"]
    stub: Any = Router(port, node_pb2.LinkMeasurement(from_node_id="dgx", bytes_per_second=1e9))
    diagnosis = asyncio.run(asyncio.wait_for(diagnose(stub, "router", num_prompt_tokens=9, max_tokens=1), 40))

    assert diagnosis is not None
    dgx, mac = diagnosis.nodes
    assert (dgx.is_serving, dgx.is_reached_by_nodes, dgx.problem) == (False, True, "")
    assert mac.problem


@pytest.mark.parametrize(("days_ago", "told"), [(10, ""), (25, "ends in 1"), (31, "expired")])
def test_a_certificate_that_nobody_renews_is_told_of_before_it_ends(tmp_path: Path, days_ago: int, told: str) -> None:
    """A node's and the router's: it was due after two thirds of its 30 days."""
    authority, key = create_authority(datetime.now(UTC) - timedelta(days=60), timedelta(days=90)), create_key()
    begun = datetime.now(UTC) - timedelta(days=days_ago)
    signed = authority.sign(
        certificate_request(key, "dgx"), node_id="dgx", server_name="baton", now=begun, lifetime=timedelta(days=30)
    )
    for name, content in {"ca.crt": authority.certificate, "tls.crt": signed, "tls.key": key}.items():
        (tmp_path / name).write_bytes(content)
    who = TlsIdentity(tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "ca.crt", "baton")

    async def main() -> Diagnosis | None:
        with secured_by(who):
            server = GrpcServer("127.0.0.1:0")
            port = await server.start()
            stub: Any = Router(port, node_pb2.LinkMeasurement(from_node_id="dgx", bytes_per_second=1e9))
            diagnosis = await diagnose(stub, f"127.0.0.1:{port}", num_prompt_tokens=9, max_tokens=1)
            await server.drain(0)
            return diagnosis

    diagnosis = asyncio.run(asyncio.wait_for(main(), 60))

    assert diagnosis is not None
    assert told in diagnosis.router_problem
    assert bool(diagnosis.router_problem) == bool(told)
    if told:
        assert advise(diagnosis)[0].startswith("router: its certificate")
        assert not diagnosis.is_healthy


def test_without_a_router_it_says_where_none_answered() -> None:
    """Exit status 1, and what to do."""
    port = free_ports(["nobody"])["nobody"]
    done = baton("doctor", "--router", f"127.0.0.1:{port}")

    assert done.returncode == 1
    assert f"router at 127.0.0.1:{port}" in done.stderr
    assert "baton up" in done.stderr
