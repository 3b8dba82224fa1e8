"""`bench.pptg.__main__` from its command line to its file, against a server that counts words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.pptg.__main__ import main
from bench.pptg.options import parser, settings_of
from bench.pptg.report import Setting
from tests.bench.fake_server import (
    HEAD,
    chunked,
    delta_chunk,
    json_answer,
    sse,
    usage_chunk,
)

TEMPLATE_TOKENS = 7
POWER = {"prefill_energy_joules": 1.5, "generation_energy_joules": 2.5}
STATS = {"prompt_tps": 900.0, "generation_tps": 30.0, "prompt_tokens": 1, "generation_tokens": 1}


class WordServer:
    """Counts words; has exo's endpoints if told so; answers as many tokens as asked for."""

    def __init__(self, *, has_bench: bool) -> None:
        self.has_bench = has_bench
        self.contents: list[str] = []

    def __call__(self, path: str, body: dict[str, Any]) -> list[bytes]:
        """Return the pieces of an answer."""
        if path == "/v1/models":
            return [json_answer({"data": [{"id": "m"}]})]
        if path != ("/bench/chat/completions" if self.has_bench else "/v1/chat/completions"):
            return [json_answer({"error": "unknown"}, "404 Not Found")]
        content = body["messages"][0]["content"]
        self.contents.append(content)
        usage = usage_chunk(TEMPLATE_TOKENS + len(content.split()), body["max_tokens"])
        stats = [f": generation_stats {json.dumps(STATS)}", f": power_usage {json.dumps(POWER)}"]
        stats = stats if self.has_bench else []
        return [HEAD + chunked(sse(*[delta_chunk("x")] * body["max_tokens"], usage, *stats))]


def test_a_plain_server_is_measured_by_the_client(serving: Any, tmp_path: Path) -> None:
    """Exact lengths, cold prompts, a run per request, both aggregates."""
    script = WordServer(has_bench=False)
    server = serving(script)
    out = tmp_path / "p.json"

    status = main(["--url", server.url, "--pp", "64,99", "--tg", "3", "--concurrency", "1,2", "--repeat", "2",
                   "--warmup", "1", "--out", str(out)])  # fmt: skip

    document = json.loads(out.read_text())
    assert status == 0
    assert [row["stats"]["prompt_tokens"] for row in document["runs"]] == [64] * 6 + [99] * 6
    assert {row["stats"]["generation_tokens"] for row in document["runs"]} == {3}
    assert {row["stats_source"] for row in document["runs"]} == {"client"}
    assert len(document["batches"]) == 8
    assert len(set(script.contents)) == len(script.contents)
    assert document["settings"]["path"] == "/v1/chat/completions"
    assert document["cluster"] is None


def test_a_bench_endpoint_is_preferred_and_its_rates_are_reported(serving: Any, tmp_path: Path) -> None:
    """Exo's statistics and energy come in comments of the stream."""
    server = serving(WordServer(has_bench=True))
    out = tmp_path / "p.json"

    main(
        ["--url", server.url, "--pp", "40", "--tg", "2", "--concurrency", "3", "--use-prefix-cache", "--out", str(out)]
    )

    document = json.loads(out.read_text())
    measured = [body for path, body in server.requests if path == "/bench/chat/completions" and body["max_tokens"] == 2]
    assert [body["use_prefix_cache"] for body in measured] == [True] * 3
    assert not any(body["use_prefix_cache"] for path, body in server.requests if body.get("max_tokens") == 1)
    assert len({body["messages"][0]["content"] for body in measured}) == 1
    assert {row["stats_source"] for row in document["runs"]} == {"server"}
    assert document["batches"][0]["exo_aggregate_tps"] == pytest.approx(90.0)
    assert [row["power_usage"] for row in document["runs"]] == [POWER] * 3


def test_the_table_says_why_the_aggregates_differ(serving: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Both under their names."""
    main(["--url", serving(WordServer(has_bench=True)).url, "--pp", "40", "--tg", "2", "--concurrency", "2"])

    header, row, *explanation = capsys.readouterr().out.splitlines()
    assert "exo max x N" in header
    assert "60.0" in row
    assert "fastest stream's rate times N" in explanation[0]


def test_every_length_is_measured_with_every_other_at_every_concurrency() -> None:
    """In the order of the options."""
    settings = settings_of(parser().parse_args(["--pp", "1,2", "--tg", "3,4", "--concurrency", "1,8"]))

    assert len(settings) == 8
    assert settings[1] == Setting(1, 3, 8)


def test_an_unreachable_server_is_a_plain_error(capsys: pytest.CaptureFixture[str]) -> None:
    """A status and a line, no traceback."""
    status = main(["--url", "http://127.0.0.1:1", "--pp", "64", "--tg", "2"])

    assert status == 1
    assert "Connect" in capsys.readouterr().err
