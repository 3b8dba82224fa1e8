"""GuideLLM, with its defaults: streams whose every chunk has a usage, of a length that is asked for."""

from __future__ import annotations

import tempfile
from pathlib import Path

from features import MODEL, MODEL_DIR, URL, expect, expect_true, run
from load_program import NUM_REQUESTS, OUTPUT_TOKENS, read_json, run_program


def _run(path: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        report_file = Path(folder) / "report.json"
        arguments = {
            "--backend": f"kind=openai_http,target={URL},model={MODEL},request_format={path}",
            "--tokenizer": f"kind=hf_auto,model={MODEL_DIR}",
            "--profile": "kind=concurrent,streams=2",
            "--constraint": f"kind=max_requests,count={NUM_REQUESTS}",
            "--data": f"kind=synthetic_text,prompt_tokens=64,output_tokens={OUTPUT_TOKENS}",
            "--output": f"kind=json,path={report_file}",
        }
        flags = [word for pair in arguments.items() for word in pair]
        run_program("guidellm", ("run", *flags, "--disable-console-interactive"), folder)
        (benchmark,) = read_json(report_file)["benchmarks"]
    metrics = benchmark["metrics"]
    totals = metrics["request_totals"]
    expect((totals["errored"], totals["incomplete"]), (0, 0), "requests that failed, and that did not end")
    expect_true(totals["successful"] >= NUM_REQUESTS - 1, f"{totals['successful']} requests")
    expect(metrics["output_token_count"]["successful"]["mean"], float(OUTPUT_TOKENS), "output tokens")
    first = metrics["time_to_first_token_ms"]["successful"]["median"]
    expect_true(first > 0, "no time to first token")
    return f"TTFT {first:.0f} ms"


def load() -> str:
    """Chats."""
    return _run("/v1/chat/completions")


def load_completions() -> str:
    """Text completions."""
    return _run("/v1/completions")


def load_responses() -> str:
    """Responses."""
    return _run("/v1/responses")


FEATURES = (load, load_completions, load_responses)

if __name__ == "__main__":
    run({feature.__name__: feature for feature in FEATURES})
