"""The GPU benchmark runs to its end without a GPU, and judges what it should."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.engines.gpu import Finding, findings_of, main, table_of

RATES = {"kind": "rates", "matmul_flops": 1e12, "memory_bytes_per_second": 1e11, "host_bytes_per_second": 5e10}


def finding_of(line: dict[str, object], *others: dict[str, object]) -> Finding:
    """Return what is found in one line."""
    return findings_of([RATES, line, *others])[0]


@pytest.mark.usefixtures("children_here")
def test_dry_run_measures_everything_and_writes_both_files(tmp_path: Path) -> None:
    """On the CPU, with tiny models, every measurement but the kernel's comes back; nothing is judged."""
    out, plot = tmp_path / "gpu.json", tmp_path / "gpu.png"

    assert main(["--device", "cpu", "--dry", "--out", str(out), "--plot", str(plot)]) == 0

    document = json.loads(out.read_text())
    kinds = [line["kind"] for line in document["lines"]]
    assert kinds == ["machine", "rates", *["decode"] * 4, "prefill", "streaming", *["batch"] * 3]
    assert all(finding["value"] > 0 for finding in document["findings"])
    assert str(tmp_path) not in out.read_text()
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("seconds", "is_met"), [(0.0014, True), (0.0015, False)])
def test_decode_is_held_to_the_memory(seconds: float, is_met: bool) -> None:
    """A step of 100 MB takes 1 ms at best at 100 GB/s; 0.7 of that is asked."""
    line = {"kind": "decode", "batch_size": 32, "num_steps": 1, "step_seconds": seconds, "step_bytes": 1e8}

    finding = finding_of(line)

    assert finding.best == pytest.approx(32_000)
    assert finding.is_met == is_met


@pytest.mark.parametrize(("seconds", "is_met"), [(1.6, True), (1.7, False)])
def test_prefill_is_held_to_the_matmul_rate(seconds: float, is_met: bool) -> None:
    """A prompt of 1 TFLOP takes a second at best at 1 TFLOP/s; 0.6 of that is asked of the median."""
    line = {"kind": "prefill", "num_tokens": 4096, "seconds": [9.0, seconds, 0.1], "flops": 1e12}

    assert finding_of(line).is_met == is_met


def test_a_batch_must_be_ahead_of_transformers_too() -> None:
    """25,000 tokens a second are asked, or what transformers reached in the same run."""
    own = {"kind": "batch", "system": "baton", "temperature": 0.0, "num_output_tokens": 30_000, "seconds": 1.0}
    other = {**own, "system": "transformers", "num_output_tokens": 31_000}

    assert finding_of(own).is_met
    assert not finding_of(own, other).is_met


def test_one_wrong_case_of_the_kernel_is_named_missed() -> None:
    """The largest error of a number format counts."""
    errors = {"a, float32, x": 1e-7, "b, float32, x": 0.1, "a, float16, x": 1e-3, "a, bfloat16, x": 1e-3}

    findings = findings_of([RATES, {"kind": "kernel", "seed": 1, "errors": errors}])

    assert [finding.is_met for finding in findings] == [False, True, True, True]
    assert table_of(findings).row_count == 4


def test_a_child_that_fails_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A child that ends with an error, or that cannot be started, ends the benchmark with status 1."""
    failing = tmp_path / "python"
    failing.write_text("#!/bin/sh\nexit 3\n")
    failing.chmod(0o755)

    assert main(["--python", str(failing)]) == 1
    assert "ended with status 3" in capsys.readouterr().err
    assert main(["--python", str(tmp_path / "absent")]) == 1
