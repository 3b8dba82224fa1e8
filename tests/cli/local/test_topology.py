"""Which workers are started."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.cli.local.topology import NodeSpec, default_topology, node_ids, parse_engine, read_topology
from baton.errors import ConfigurationError
from baton.node.settings import EngineName


def _file(folder: Path, text: str) -> Path:
    path = folder / "nodes.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("prefill", "decode", "second", "expected"),
    [
        ("", "", "mlx", ["worker-torch", "worker-mlx"]),
        ("", "", "torch", ["worker-torch-1", "worker-torch-2"]),
        ("mock", "", "mlx", ["prefill-mock", "decode-mlx"]),
        ("", "mock", "mlx", ["prefill-torch", "decode-mock"]),
    ],
)
def test_two_workers_play_any_part_unless_an_engine_is_named_for_one(
    prefill: str, decode: str, second: EngineName, expected: list[str]
) -> None:
    """Their ids say what they may do."""
    assert [node_id for node_id, _ in node_ids(default_topology(prefill, decode, second=second))] == expected


def test_a_file_gives_kinds_counts_and_settings(tmp_path: Path) -> None:
    """Further keys become settings of the worker, as text."""
    text = """
    [[node]]
    role = "prefill"
    engine = "torch"
    [[node]]
    role = "decode"
    engine = "mock"
    count = 2
    num_blocks = 512
    mock_hardware = "h200"
    """

    specs = read_topology(_file(tmp_path, text))

    assert specs == (
        NodeSpec("prefill", "torch"),
        NodeSpec("decode", "mock", 2, {"num_blocks": "512", "mock_hardware": "h200"}),
    )


def test_ids_are_numbered_over_all_tables_of_a_kind() -> None:
    """No two workers share an id."""
    specs = (NodeSpec("decode", "mock", 2), NodeSpec("decode", "torch"), NodeSpec("decode", "mock"))

    ids = [node_id for node_id, _ in node_ids(specs)]

    assert ids == ["decode-mock-1", "decode-mock-2", "decode-torch", "decode-mock-3"]


_DECODE = '[[node]]\nrole = "decode"\nengine = "mock"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes = 3", "unknown key nodes"),
        ("node = 3", "node: expected"),
        ("", "at least one"),
        (
            _DECODE.replace("decode", "router"),
            r"node\[0\]\.role: expected one of prefill, decode, worker, got 'router'",
        ),
        (_DECODE.replace("mock", "jax"), r"node\[0\]\.engine: .*'jax'"),
        (_DECODE + "count = 0", r"node\[0\]\.count: expected 1 to 256, got 0"),
        (_DECODE + "count = true", r"node\[0\]\.count"),
        (_DECODE + "port = 1", r"node\[0\]\.port: chosen by"),
        (_DECODE + "num_blokcs = 5", r"num_blokcs in .*nodes\.toml: node\[0\]"),
        (_DECODE + "num_blocks = 0", r"num_blocks in .*nodes\.toml: node\[0\]"),
        ("[[node", "nodes.toml"),
    ],
)
def test_a_wrong_file_is_refused_by_its_key(tmp_path: Path, text: str, message: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(ConfigurationError, match=message):
        read_topology(_file(tmp_path, text))


def test_a_worker_alone_is_a_cluster(tmp_path: Path) -> None:
    """It decodes; and it takes the settings of both parts."""
    text = '[[node]]\nrole = "worker"\nengine = "mock"\nmax_outbox_bytes = 5\nprobe_bytes = 0\n'

    (spec,) = read_topology(_file(tmp_path, text))

    assert node_ids([spec]) == (("worker-mock", spec),)
    assert spec.options == {"max_outbox_bytes": "5", "probe_bytes": "0"}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The message has its path."""
    with pytest.raises(ConfigurationError, match=r"none\.toml"):
        read_topology(tmp_path / "none.toml")


def test_an_unknown_engine_is_refused_under_its_flag() -> None:
    """`--decode` is named, and what it may be."""
    with pytest.raises(ConfigurationError, match="--decode: expected one of torch, mlx, mock, got 'jax'"):
        parse_engine("jax", "--decode")
