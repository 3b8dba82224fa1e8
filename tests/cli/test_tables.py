"""Tables of `baton plan` and `baton nodes`."""

from __future__ import annotations

import io

from rich.console import Console
from rich.table import Table

from baton.capacity.cost import CostEstimate
from baton.capacity.placement import Candidate
from baton.cli.nodes import devices_table, links_table, nodes_table, places_table, pools_table, speeds_table
from baton.cli.plan import plan_table
from baton.cli.terminal.tables import format_bytes, format_rate
from baton.internal.v1 import node_pb2, router_service_pb2


def _text(table: Table) -> str:
    stream = io.StringIO()
    Console(file=stream, width=250, color_system=None).print(table)
    return " ".join(stream.getvalue().split())


def _estimate(start_seconds: float) -> CostEstimate:
    return CostEstimate(0.0, start_seconds, 0.0, 0.0, start_seconds, start_seconds, 0.01, 10.0, 0.0)


def test_the_plan_shows_every_candidate_and_marks_the_choice() -> None:
    """In the router's order, cheapest first; the infeasible say why."""
    text = _text(
        plan_table(
            [
                Candidate("d", "", estimate=_estimate(1.0)),
                Candidate("d", "p", estimate=_estimate(2.0)),
                Candidate("e", "", infeasible_reason="no room"),
            ]
        )
    )

    assert text.index("d local") < text.index("d p") < text.index("e local")
    assert "1.1 s chosen" in text
    assert "no room" in text


def test_nodes_and_links_are_shown_with_units() -> None:
    """Rates have prefixes; a calibration that nobody measured is a dash."""
    node = node_pb2.NodeDescription(
        node_id="decode-a",
        role=node_pb2.NODE_ROLE_DECODE,
        engine="mlx",
        device="apple M3 Ultra",
        block_count=10,
        block_token_count=16,
        profile=node_pb2.NodeProfile(prefill_flops=2.6e13, decode_bytes_per_second=8.19e11),
    )
    link = node_pb2.LinkMeasurement(from_node_id="prefill-a", bytes_per_second=1.25e9)
    state = router_service_pb2.NodeState(node=node, links=[link], decode_calibration=1.1)

    assert "decode-a decode mlx apple M3 Ultra" in _text(nodes_table([state]))
    assert "decode-a 26 TFLOP/s 819 GB/s 0 - / 1.10" in _text(speeds_table([state]))
    assert "prefill-a decode-a 1.25 GB/s" in _text(links_table([state]))


def test_devices_are_shown_that_nodes_share() -> None:
    """A node alone on its device has no row, nor has one that does not tell its device."""
    ids = {"a": "0f/cpu", "b": "0f/cpu", "c": "1e/cpu", "d": "", "e": ""}
    nodes = [node_pb2.NodeDescription(node_id=name, device_id=device_id) for name, device_id in ids.items()]

    table = devices_table([router_service_pb2.NodeState(node=node) for node in nodes])

    assert table.row_count == 1
    assert "0f/cpu a, b" in _text(table)


def test_pools_are_shown_with_their_cause() -> None:
    """Beside the load, or why there is none, and the free blocks; a node may not say why."""
    told = node_pb2.NodeDescription(
        node_id="decode-a", block_count=10, block_token_count=16, block_count_cause="num_blocks says so"
    )
    states = [router_service_pb2.NodeState(node=node) for node in (told, node_pb2.NodeDescription(node_id="old"))]
    states[0].load.running_request_count, states[0].load.free_block_count = 2, 7
    states[1].unusable_reason = "no report for 7.2 s"

    text = _text(pools_table(states))
    assert "decode-a 2 run, 0 wait 7/10 × 16 num_blocks says so" in text  # noqa: RUF001 - tokens of each
    assert text.endswith("no report for 7.2 s 0/0 × 0 -")  # noqa: RUF001


def test_quantities_have_three_digits_and_a_prefix() -> None:
    """Decimal prefixes, also at the borders."""
    assert [format_bytes(value) for value in (0, 999, 1000, 999_600, 1.07e9)] == [
        "0 B",
        "999 B",
        "1 kB",
        "1 MB",
        "1.07 GB",
    ]
    assert format_rate(1.25e9, "B/s") == "1.25 GB/s"


def test_places_are_shown_for_nodes_in_kubernetes_alone() -> None:
    """A pod's node, zone, accelerators, capacity and taints; a bare machine has no row."""
    place = node_pb2.KubernetesPlace(
        node_name="gpu-7",
        labels={"topology.kubernetes.io/zone": "eu-1a"},
        taints=["nvidia.com/gpu:NoSchedule"],
        allocatable={"cpu": "64"},
        accelerator_counts={"nvidia.com/gpu": 2},
    )
    pod = router_service_pb2.NodeState(node=node_pb2.NodeDescription(node_id="decode-a", place=place))
    bare = router_service_pb2.NodeState(node=node_pb2.NodeDescription(node_id="mac"))

    assert "decode-a gpu-7 eu-1a 2 nvidia.com/gpu 64 cpu nvidia.com/gpu:NoSchedule" in _text(places_table([pod, bare]))
    assert places_table([bare]).row_count == 0
