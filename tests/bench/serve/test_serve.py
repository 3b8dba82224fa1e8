"""`bench.serve.__main__` from its command line to its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.serve.__main__ import main
from tests.bench.fake_server import HEAD, chunked, json_answer, sse, text_chunk, usage_chunk


def answer(path: str, body: dict[str, Any]) -> list[bytes]:
    """Answer as many tokens as asked for."""
    if path == "/v1/models":
        return [json_answer({"data": [{"id": "m"}]})]
    if path != "/v1/completions":
        return [json_answer({"error": "unknown"}, "404 Not Found")]
    usage = usage_chunk(len(body["prompt"]), body["max_tokens"])
    return [HEAD + chunked(sse(*[text_chunk("x")] * body["max_tokens"], usage))]


def test_a_run_has_a_table_and_a_file(
    serving: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings have neither the key nor a folder of this machine."""
    monkeypatch.setenv("BENCH_TEST_KEY", "secret-key")
    trace = tmp_path / "t.jsonl"
    row = {"timestamp": 0, "input_length": 8, "output_length": 3, "hash_ids": [0]}
    trace.write_text("".join(json.dumps(row | {"timestamp": 10 * index}) + "\n" for index in range(5)))
    out = tmp_path / "r.json"

    status = main(["--url", serving(answer).url, "--dataset", "mooncake", "--path", str(trace), "--arrivals", "trace",
                   "--token-ids", "3:90", "--api-key-env", "BENCH_TEST_KEY", "--slo-ttft", "60",
                   "--out", str(out)])  # fmt: skip

    assert status == 0
    assert "goodput" in capsys.readouterr().out
    assert json.loads(out.read_text())["summary"]["completion_tokens"] == 15
    assert "secret-key" not in out.read_text()
    assert str(tmp_path) not in out.read_text()


def test_a_failed_warm_up_ends_the_command(serving: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The run would fail, too."""
    status = main(["--url", serving(answer).url, "--chat", "--count", "1"])

    assert status == 1
    assert "the warm-up failed: HttpError: HTTP 404" in capsys.readouterr().err


def test_an_empty_key_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """By the name of its variable."""
    with pytest.raises(SystemExit):
        main(["--api-key-env", "NO_SUCH_VARIABLE_HERE", "--count", "1"])

    assert "NO_SUCH_VARIABLE_HERE is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [
        ("--count", "0"),
        ("--warmup", "-1"),
        ("--rate", "0"),
        ("--timeout", "nan"),
        ("--think", "-1"),
        ("--extra-body", "[1]"),
        ("--extra-body", "{"),
    ],
    ids=" ".join,
)
def test_a_value_out_of_range_is_refused(wrong: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """By the name of its option, before the server is asked anything."""
    with pytest.raises(SystemExit) as left:
        main(["--url", "http://127.0.0.1:1", *wrong])

    assert left.value.code == 2
    assert f"argument {wrong[0]}: expected" in capsys.readouterr().err


def test_a_server_that_does_not_answer_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """By its address."""
    assert main(["--url", "http://127.0.0.1:1", "--count", "1"]) == 1
    assert "http://127.0.0.1:1: " in capsys.readouterr().err
