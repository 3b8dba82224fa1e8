"""Files and tables of runs."""

from __future__ import annotations

import json
from pathlib import Path

from bench.client.metrics import ServiceLevel
from bench.serve.report import Run, table, write_run
from tests.bench.samples import sample

SAMPLES = (sample(0.1, 0.2, 0.4), sample(0.3, 0.5, sent=0.1), sample(sent=0.2, finished=0.6, error="broken"))


def run(label: str = "a run") -> Run:
    """Return a run with a failed request."""
    return Run(label, {"seed": 1}, {"cores": 2}, {}, ServiceLevel(ttft_seconds=0.15), SAMPLES)


def test_a_file_has_the_raw_samples(tmp_path: Path) -> None:
    """With settings and bounds, so that every number can be computed again."""
    write_run(run(), tmp_path / "r.json")

    written = json.loads((tmp_path / "r.json").read_text())
    assert (written["format"], written["label"], written["settings"]) == ("baton-bench-serve/1", "a run", {"seed": 1})
    assert written["service_level"]["ttft_seconds"] == 0.15
    assert [each["token_seconds"] for each in written["samples"]] == [list(each.token_seconds) for each in SAMPLES]


def test_a_table_has_milliseconds_and_rates() -> None:
    """TTFT 100 and 200 ms; two of three requests done in 0.6 s, one of them good."""
    text = table(run().summary)

    assert "requests 3, failed 1, short 0" in text
    assert "goodput: 1.67 requests/s, 33.3 % of requests" in text
    assert [line.split()[1:3] for line in text.splitlines() if line.startswith("TTFT")] == [["150.00", "150.00"]]


def test_a_table_of_a_failed_run_has_no_latencies() -> None:
    """A dash rather than a number."""
    failed = Run("failed", {}, {}, {}, ServiceLevel(), (sample(error="broken", finished=1.0),))

    assert "TTFT                 -" in table(failed.summary)
