"""What `baton up` shows while processes start."""

from __future__ import annotations

import os

from baton.cli.terminal.console import QuietLines, StartingLine

TEXT = "2026-11-23T01:45:08.152Z {level:<7} router      {message}"


def _shown(*lines: str) -> tuple[list[str], QuietLines]:
    shown: list[str] = []
    quiet = QuietLines(lambda _name, line: shown.append(line))
    for line in lines:
        quiet("router", line)
    return shown, quiet


def test_only_warnings_are_shown_with_the_tracebacks_behind_them() -> None:
    """The last event is remembered for the line of those that start."""
    warning, trace = TEXT.format(level="WARNING", message="join_waits cause='x'"), "  File 'x', line 1"
    shown, quiet = _shown(
        "a library's remark",
        TEXT.format(level="INFO", message="model_loaded seconds=1"),
        "another remark",
        warning,
        trace,
        TEXT.format(level="INFO", message="grpc_listening port=1"),
    )

    assert shown == [warning, trace]
    assert quiet.events == {"router": "grpc listening"}


def test_records_in_json_are_told_by_their_level() -> None:
    """As BATON_LOG_FORMAT=json has them."""
    error = '{"time": "x", "level": "error", "service": "router", "message": "m"}'

    assert _shown('{"time": "x", "level": "info", "service": "router", "message": "m"}', error)[0] == [error]


def test_who_still_starts_is_told_with_what_it_did_last() -> None:
    """Of large weights, how much of them is in memory."""
    line = StartingLine(
        ["router", "decode-mlx", "gateway"],
        {"router": "grpc listening", "decode-mlx": "computing chosen"},
        {"decode-mlx": 16 * 10**9},
        lambda _name: os.getpid(),
    )
    line.finish("router")

    words = line.__rich__().plain
    assert words.startswith("0 s, waiting for decode-mlx (")
    assert words.endswith("B of 16 GB), gateway (starts)")
