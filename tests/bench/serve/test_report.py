"""Files, tables and pictures of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.client.metrics import ServiceLevel
from bench.serve import compare
from bench.serve.plot import draw_runs
from bench.serve.report import Run, read_run, table, write_run
from tests.bench.samples import sample

SAMPLES = (sample(0.1, 0.2, 0.4), sample(0.3, 0.5, sent=0.1), sample(sent=0.2, finished=0.6, error="broken"))


def run(label: str = "a run") -> Run:
    """Return a run with a failed request."""
    return Run(label, {"seed": 1}, {"cores": 2}, {}, ServiceLevel(ttft_seconds=0.15), SAMPLES)


def test_a_file_brings_back_its_run(tmp_path: Path) -> None:
    """Raw samples, settings and bounds survive, so every number can be computed again."""
    write_run(run(), tmp_path / "r.json")

    assert read_run(tmp_path / "r.json") == run()
    assert read_run(tmp_path / "r.json").summary == run().summary


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    """By name."""
    (tmp_path / "x.json").write_text('{"format": "other/1"}')

    with pytest.raises(ValueError, match=r"x\.json has the format 'other/1'"):
        read_run(tmp_path / "x.json")


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


def test_several_runs_are_compared_in_one_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the names given."""
    for name in ("a", "b"):
        write_run(run(name), tmp_path / f"{name}.json")
    picture = tmp_path / "x.png"

    compare.main([str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--labels", "one,two", "--out", str(picture)])

    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "\ntwo\n" in capsys.readouterr().out


def test_a_failed_run_can_be_drawn(tmp_path: Path) -> None:
    """Empty panels, no error."""
    draw_runs([Run("failed", {}, {}, {}, ServiceLevel(), (sample(error="broken", finished=1.0),))], tmp_path / "f.png")

    assert (tmp_path / "f.png").stat().st_size > 0
