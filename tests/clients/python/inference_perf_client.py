"""Kubernetes' inference-perf, with its mock data: it is configured by a file, and writes a report."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from features import MODEL, MODEL_DIR, URL, expect, expect_true, run
from load_program import read_json, run_program


def _run(api: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yml"  # JSON is YAML
        config.write_text(json.dumps(_config(api, folder)))
        run_program("inference-perf", ("--config_file", str(config)), folder)
        report = read_json(Path(folder) / "out" / "summary_lifecycle_metrics.json")
    expect(report["failures"]["count"], 0, "failed requests")
    expect_true(report["successes"]["count"] >= 4, f"{report['successes']['count']} requests")
    return f"{report['successes']['count']} requests"


def _config(api: str, folder: str) -> dict[str, Any]:
    return {
        "load": {"type": "constant", "stages": [{"rate": 2, "duration": 3}], "num_workers": 1},
        "api": {"type": api, "streaming": True},
        "server": {"type": "vllm", "model_name": MODEL, "base_url": URL, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": MODEL_DIR},
        "data": {"type": "mock"},
        "storage": {"local_storage": {"path": str(Path(folder) / "out")}},
    }


def load() -> str:
    """Chats."""
    return _run("chat")


def load_completions() -> str:
    """Text completions."""
    return _run("completion")


FEATURES = (load, load_completions)

if __name__ == "__main__":
    run({feature.__name__: feature for feature in FEATURES})
