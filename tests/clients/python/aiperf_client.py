"""NVIDIA's AIPerf: synthetic prompts to each API, streamed, with first tokens measured and no error."""

from __future__ import annotations

import tempfile
from pathlib import Path

from features import MODEL, MODEL_DIR, URL, expect, expect_true, run
from load_program import NUM_REQUESTS, OUTPUT_TOKENS, read_json, run_program


def _profile(endpoint: str, *arguments: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        model = ("--model", MODEL, "--url", URL, "--tokenizer", MODEL_DIR, "--endpoint-type", endpoint, "--streaming")
        load = ("--request-count", str(NUM_REQUESTS), "--concurrency", "2", "--isl", "64", "--osl", str(OUTPUT_TOKENS))
        output = ("--ui", "none", "--artifact-dir", folder)
        # Offline it does not find a tokenizer by its folder; there it reads files, and asks nobody.
        run_program("aiperf", ("profile", *model, *load, *output, *arguments), folder, is_offline=False)
        report = read_json(Path(folder) / "profile_export_aiperf.json")
    expect(report["error_summary"], [], "errors")
    expect(report["request_count"]["avg"], float(NUM_REQUESTS), "requests")
    expect_true(report["time_to_first_token"]["p50"] > 0, "no time to first token")
    return f"TTFT {report['time_to_first_token']['p50']:.0f} ms"


def load() -> str:
    """Chats, and its collection of /metrics."""
    return _profile("chat")


def load_completions() -> str:
    """Text completions."""
    return _profile("completions")


def load_responses() -> str:
    """Responses, with a field that is vLLM's; it counts the tokens of a text anew, so that they are not checked."""
    return _profile("responses", "--extra-inputs", "ignore_eos:true")


FEATURES = (load, load_completions, load_responses)

if __name__ == "__main__":
    run({feature.__name__: feature for feature in FEATURES})
