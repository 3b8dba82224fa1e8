"""The load generator in C, and what is made of its numbers."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from bench.servers.cost_sample import Sample, summary_lines
from bench.servers.stream_load import Latencies, Load, compile_load, run_load, write_body
from bench.servers.tiny_model import write_model
from tests.bench.fake_server import HEAD, chunked, delta_chunk, fake_server, json_answer, sse

pytestmark = pytest.mark.skipif(not shutil.which("cc") and not shutil.which("gcc"), reason="needs a C compiler")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the compiled load generator."""
    return compile_load(tmp_path_factory.mktemp("load"))


def _run(program: Path, folder: Path, script: Any, load: Load) -> tuple[Latencies, list[str]]:
    body = write_body(folder, num_prompt_words=4, num_tokens=load.num_tokens)

    async def run() -> tuple[Latencies, list[str]]:
        async with fake_server(script) as fake:
            port = int(fake.url.rpartition(":")[2])
            latencies = await asyncio.to_thread(run_load, program, port, body, load)
            return latencies, [request["messages"][0]["content"] for _, request in fake.requests]

    return asyncio.run(asyncio.wait_for(run(), 30))


def test_a_load_counts_events_requests_and_gaps(program: Path, tmp_path: Path) -> None:
    """However the answer is cut; every prompt is unlike the others."""
    answer = HEAD + chunked(sse(delta_chunk(""), delta_chunk("a"), ": a comment", delta_chunk("b"), delta_chunk("c")))
    pieces = [answer[start : start + 7] for start in range(0, len(answer), 7)]
    latencies, prompts = _run(program, tmp_path, lambda _path, _body: pieces, Load(3, 2, 3, 0.01))

    assert latencies.num_failed == 0
    assert latencies.num_events == 6 * 3
    assert len(latencies.ttft_seconds) == 6
    assert sum(latencies.itl_bins.values()) == 6 * 2
    assert len(set(prompts)) == 6


def test_a_line_that_is_cut_by_a_chunk_is_one_line(program: Path, tmp_path: Path) -> None:
    """As servers that write as it comes may cut it."""
    body = sse(delta_chunk("a"), delta_chunk("b"))
    half = len(body) // 2
    answer = HEAD + b"%x\r\n%b\r\n" % (half, body[:half]) + chunked(body[half:])
    latencies, _ = _run(program, tmp_path, lambda _path, _body: [answer], Load(1, 1, 2, 0.0))

    assert (latencies.num_failed, latencies.num_events) == (0, 2)


def test_an_answer_with_an_error_is_counted_as_failed(program: Path, tmp_path: Path) -> None:
    """So is one that hangs up."""
    bad = json_answer({"error": {"message": "no"}}, "503 Service Unavailable")
    refused, _ = _run(program, tmp_path, lambda _path, _body: [bad], Load(1, 1, 2, 0.0))
    cut, _ = _run(program, tmp_path, lambda _path, _body: [HEAD, b""], Load(1, 1, 2, 0.0))

    assert (refused.num_failed, cut.num_failed) == (1, 1)


def _sample(system: str = "baton", gateway_seconds: float = 0.256) -> Sample:
    latencies = Latencies(1.0, 0, 256, 0.01, [0.010, 0.020, 0.030], {400: 252, 800: 2})
    cpu = {"gateway": gateway_seconds, "gateway/main": 0.1, "decode": 0.5, "decode/main": 0.2}
    return Sample(system, 0.02, Load(2, 1, 128, 0.0), 0, latencies, cpu)


def test_costs_and_times_follow_their_formulas() -> None:
    """CPU time over tokens; ranks interpolated; gaps to the middle of their bin."""
    sample = _sample()

    assert sample.cpu_microseconds_per_token("gateway") == pytest.approx(1000.0)
    assert sample.ttft_seconds(0.5) == pytest.approx(0.020)
    assert sample.ttft_seconds(0.75) == pytest.approx(0.025)
    assert sample.latencies.itl_seconds(0.5) == pytest.approx(0.020, abs=1e-4)
    assert sample.latencies.itl_seconds(0.999) == pytest.approx(0.040, abs=1e-4)


def test_the_table_has_a_line_per_system_and_the_median_of_its_turns() -> None:
    """An outlier among the turns changes nothing."""
    samples = [_sample(gateway_seconds=seconds) for seconds in (0.1, 0.256, 0.9)] + [_sample("direct")]
    lines = summary_lines(samples)

    assert len(lines) == 3
    assert " 1000.0 " in lines[1]


def test_the_model_folder_has_a_tokenizer_that_works(tmp_path: Path) -> None:
    """With a chat template, as both servers want it."""
    from transformers import AutoTokenizer

    size = write_model(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)

    assert len(tokenizer) == size
    assert tokenizer.decode(tokenizer.encode("able also back")) == "able also back"
    assert "user: x" in tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)
