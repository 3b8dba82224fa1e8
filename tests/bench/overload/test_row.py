"""Numbers of one load."""

from __future__ import annotations

import pytest

from bench.client.metrics import ServiceLevel
from bench.overload.drive import Drive, End, MemorySample, Sample
from bench.overload.row import Row, faults, line, quantile

LEVEL = ServiceLevel(2.0, 0.1)


def sample(
    end: End = "complete", *, ttft: float | None = 1.0, tpot: float = 0.05, seconds: float = 3.0, tenant: str = "a"
) -> Sample:
    """Return a good request, but for what is given."""
    return Sample(tenant, 0.0, end, seconds, ttft, tpot, 32)


def row(*samples: Sample, policy: str = "shed", load: float = 2.0, last_bytes: int = 100) -> Row:
    """Return a row of 10 seconds."""
    memory = [MemorySample(at, {"gateway": size}) for at, size in ((0.0, 50), (3.0, 100), (10.0, last_bytes))]
    return Row(policy, load, 10.0, LEVEL, 0.5, Drive(samples, memory))


def test_only_complete_requests_within_both_objectives_are_good() -> None:
    """Of five, the first."""
    late, slow, broken = sample(ttft=2.1), sample(tpot=0.11), sample("failed")

    assert row(sample(), late, slow, broken, sample("abandoned", ttft=None)).goodput == pytest.approx(0.1)


def test_tenants_are_told_apart() -> None:
    """Those that got no first token are not among them."""
    found = row(sample(), sample(ttft=3.0, tenant="b"), sample("refused", ttft=None, tenant="b"))

    assert (found.ttft_seconds("a", 0.99), found.ttft_seconds("b", 0.99)) == (1.0, 3.0)
    assert found.tenants == ["a", "b"]


def test_memory_is_compared_after_a_quarter() -> None:
    """What a process takes while it warms up is no growth."""
    assert row(sample(), last_bytes=150).memory_growth == {"gateway": 1.5}


def test_quantiles_are_interpolated() -> None:
    """Linearly, and nothing has none."""
    assert quantile([1.0, 3.0], 0.5) == 2.0
    assert quantile([], 0.5) is None


def test_every_fault_is_named() -> None:
    """Goodput below nine tenths of another policy's best, slow refusals, memory that grows; not below capacity."""
    best = row(*[sample()] * 10, policy="queue", load=0.8)
    bad = row(*[sample()] * 8, *[sample("refused", ttft=None, seconds=0.06)] * 5, last_bytes=120)
    calm = row(*[sample()], load=0.5)

    found = faults([best, bad, calm], "shed")

    assert len(found) == 3
    assert all("shed at 2 times" in fault for fault in found)
    assert faults([best, row(*[sample()] * 9)], "shed") == []


def test_a_run_without_refusals_is_printed() -> None:
    """Dashes stand for what there is not."""
    rows = [row(sample()), row(sample("refused", ttft=None, seconds=0.01), load=4.0)]

    assert " - " in line(rows[0], 1.0)
    assert rows[1].document()["refusal_p99_seconds"] == 0.01
