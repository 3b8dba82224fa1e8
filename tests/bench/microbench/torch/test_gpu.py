"""The GPU benchmark runs to its end without a GPU, and judges what it should."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.microbench.torch.__main__ import main
from bench.microbench.torch.findings import Finding, findings_of

RATES = {"kind": "rates", "matmul_flops": 1e12, "memory_bytes_per_second": 1e11, "host_bytes_per_second": 5e10}


def finding_of(line: dict[str, object], *others: dict[str, object]) -> Finding:
    """Return what is found in one line."""
    return findings_of([RATES, line, *others])[0]


def test_dry_run_measures_everything_and_writes_the_file(tmp_path: Path) -> None:
    """On the CPU, with tiny models, every measurement comes back; nothing is judged."""
    out = tmp_path / "gpu.json"

    assert main(["--device", "cpu", "--dry", "--out", str(out)]) == 0

    document = json.loads(out.read_text())
    kinds = [line["kind"] for line in document["lines"]]
    assert kinds == ["machine", "rates", *["decode"] * 4, "prefill", "streaming", *["decode"] * 4, *["batch"] * 6]
    assert all(finding["value"] > 0 for finding in document["findings"])
    assert str(tmp_path) not in out.read_text()


@pytest.mark.parametrize(("seconds", "is_met"), [(0.0014, True), (0.0015, False)])
def test_decode_is_held_to_the_memory(seconds: float, is_met: bool) -> None:
    """A step of 100 MB takes 1 ms at best at 100 GB/s; 0.7 of that is asked."""
    line = {"kind": "decode", "batch_size": 32, "num_steps": 1, "step_seconds": seconds, "step_bytes": 1e8}

    finding = finding_of(line)

    assert finding.best == pytest.approx(32_000)
    assert finding.is_met == is_met


@pytest.mark.parametrize(("batch_size", "seconds", "is_met"), [(1, 0.0016, True), (1, 0.0017, False), (32, 1, True)])
def test_decode_by_packed_weights_is_held_to_their_bytes(batch_size: int, seconds: float, is_met: bool) -> None:
    """Of a batch of one, 0.6 of what memory gives is asked; of larger ones nothing."""
    line = {"kind": "decode", "weights": "int4", "batch_size": batch_size, "num_steps": 1}

    finding = finding_of(line | {"step_seconds": seconds, "step_bytes": 1e8})

    assert finding.name == f"decode, int4, batch {batch_size}, 1 step a launch"
    assert finding.is_met == is_met


@pytest.mark.parametrize(("seconds", "is_met"), [(1.6, True), (1.7, False)])
def test_prefill_is_held_to_the_matmul_rate(seconds: float, is_met: bool) -> None:
    """A prompt of 1 TFLOP takes a second at best at 1 TFLOP/s; 0.6 of that is asked of the median."""
    line = {"kind": "prefill", "num_tokens": 4096, "seconds": [9.0, seconds, 0.1], "flops": 1e12}

    assert finding_of(line).is_met == is_met


def test_a_batch_must_be_ahead_of_transformers_too() -> None:
    """25,000 tokens a second are asked, or what transformers reached in the same run."""
    own = {
        "kind": "batch",
        "num_requests": 256,
        "max_tokens": 1024,
        "system": "baton",
        "temperature": 0.0,
        "num_output_tokens": 30_000,
    }
    own |= {"seconds": 1.0, "num_steps": 1000, "host_seconds": 0.5}
    other = {**own, "system": "transformers", "num_output_tokens": 31_000}

    assert finding_of(own).is_met
    assert finding_of(own, {**other, "num_requests": 32}).is_met
    assert not finding_of(own, other).is_met
