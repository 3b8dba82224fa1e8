"""What commands print fits 80 columns, as tables; with `-s` the captures are shown."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
from rich.table import Table

from baton.agent.child import ChildSpec
from baton.capacity.hardware import PRESETS
from baton.capacity.placement import Candidate
from baton.capacity.reference_models import LLAMA_3_1_8B
from baton.cli.cluster import diagnosis
from baton.cli.local.launch import ProcessPlan
from baton.cli.main import main
from baton.cli.terminal.console import make_console, processes_table
from baton.cli.terminal.tables import print_table
from baton.internal.v1 import node_pb2, router_service_pb2
from baton.wire.quantities import candidate_to_proto, duration_from_seconds, profile_to_proto, shape_to_proto
from cli.gateway import running_gateway
from cli.test_doctor import DIAGNOSIS, LOCAL, SLOW, WIRE

COLUMNS = 80
MODEL = replace(LLAMA_3_1_8B, max_context_tokens=4096)


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


def _state(role: str, engine: str, device: str) -> router_service_pb2.NodeState:
    node = node_pb2.NodeDescription(
        node_id=f"{role}-{engine}",
        role=node_pb2.NodeRole.Value(f"NODE_ROLE_{role.upper()}"),
        engine=engine,
        device=device,
        address="192.168.100.100:46133",
        model_id="baton-demo",
        model_shape=shape_to_proto(MODEL),
        profile=profile_to_proto(PRESETS["m3-ultra"].profile(), source="measured"),
        block_count=2048,
        block_token_count=16,
        block_count_cause="the usual number on a CPU",
    )
    state = router_service_pb2.NodeState(node=node, prefill_calibration=1.13, decode_calibration=1.24)
    state.load.free_block_count = 2048
    state.load.system.available_memory_byte_count = 10**11
    if role == "decode":
        state.links.add(
            from_node_id="prefill-torch", bytes_per_second=2.88e8, round_trip=duration_from_seconds(0.00097)
        )
    return state


STATES = [_state("prefill", "torch", "cpu, 16 threads"), _state("decode", "mlx", "gpu: Apple M3 Ultra")]
CANDIDATES = [
    Candidate("decode-mlx", "prefill-torch", estimate=SLOW, wire=WIRE),
    Candidate("decode-mlx", "", estimate=LOCAL),
]


class _Router:
    """Answers what the commands ask."""

    def Place(self, *_: Any, **__: Any) -> router_service_pb2.PlaceResponse:  # noqa: N802 - named by the proto
        """Return two candidates."""
        return router_service_pb2.PlaceResponse(candidates=[candidate_to_proto(each) for each in CANDIDATES])

    def ListNodes(self, *_: Any, **__: Any) -> router_service_pb2.ListNodesResponse:  # noqa: N802
        """Return two nodes."""
        return router_service_pb2.ListNodesResponse(nodes=STATES)


def _printed(typed: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> list[str]:
    """Run a command, whose router is made up, and return its lines."""
    for module in ("nodes", "plan"):
        monkeypatch.setattr(f"baton.cli.{module}.ask_router", lambda _address, question: question(_Router()))
    monkeypatch.setattr(sys, "argv", ["baton", *typed.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    output = capfd.readouterr()
    assert ended.value.code == 0, output.err
    print(f"$ baton {typed}\n{output.out}")
    return output.out.splitlines()


@pytest.mark.parametrize(
    ("typed", "rows"),
    [
        ("nodes", ["decode-mlx decode mlx gpu: Apple M3 Ultra 192.168.100.100:46133", "prefill-torch 0 run, 0 wait"]),
        ("plan", ["prefill prefill-torch local", "decode 100 ms 100 ms", "choice / reason chosen -500 ms"]),
    ],
)
def test_a_routers_answers_are_tables_of_eighty_columns(
    typed: str, rows: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """No line is longer, and no cell is broken: rows that are too wide stand as columns."""
    lines = _printed(typed, monkeypatch, capfd)

    assert max(map(len, lines)) <= COLUMNS
    assert any("───" in line for line in lines)
    squeezed = [" ".join(line.split()) for line in lines]
    for row in rows:
        assert any(line.startswith(row) for line in squeezed), lines


def test_an_answer_and_what_it_cost_fit(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """The placement has lines of its own."""
    with running_gateway() as url:
        lines = _printed(f"chat --url {url} -m hi", monkeypatch, capfd)

    assert lines[0] == "HI"
    assert max(map(len, lines)) <= COLUMNS


def test_what_the_doctor_finds_fits(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Formats stand side by side."""

    async def diagnose(*_: Any, **__: Any) -> diagnosis.Diagnosis:
        return DIAGNOSIS

    monkeypatch.setattr("baton.cli.doctor.diagnose", diagnose)
    lines = _printed("doctor", monkeypatch, capfd)

    assert max(map(len, lines)) <= COLUMNS
    assert any("───" in line for line in lines)


def test_the_processes_of_up_fit(capfd: pytest.CaptureFixture[str]) -> None:
    """With both addresses of the gateway below each other."""
    gateway = ProcessPlan("gateway", "", "127.0.0.1:8001", ChildSpec("gateway", ()), "http://127.0.0.1:8000")
    node = ProcessPlan("decode", "mlx", "127.0.0.1:46133", ChildSpec("decode-mlx", ()))
    table = processes_table([node, gateway], {"decode-mlx": "gpu: Apple M3 Ultra"}, {"decode-mlx": 1_000_000})
    print_table(make_console(), table)
    lines = [line.rstrip() for line in capfd.readouterr().out.splitlines()]

    assert max(map(len, lines)) <= COLUMNS
    assert " ".join(lines[4].split()) == "decode-mlx mlx, gpu: Apple M3 Ultra 127.0.0.1:46133 1000000"


def test_rows_that_do_not_fit_beside_each_other_go_below(capfd: pytest.CaptureFixture[str]) -> None:
    """As many as fit stand side by side; the headings are repeated."""
    table = Table(*("node", "address"), *(f"fact {index}" for index in range(8)))
    for index in range(5):
        table.add_row(f"decode-{index}-of-a-name", *["192.168.100.100:46133"] * 9)
    print_table(make_console(), table)
    output = capfd.readouterr().out

    assert max(map(len, output.splitlines())) <= COLUMNS
    assert output.count("address") == 2
    assert all(f"decode-{index}-of-a-name" in output for index in range(5))
