"""Which node or link a ratio is of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader

from baton.router.calibration import Comparison, record_comparison
from baton.router.nodes import Outcome
from baton.telemetry.metrics import Metrics
from router.samples import OUTCOME

_RATIOS = {"queue": 1.0, "prefill": 2.0, "transfer": 3.0, "step": 4.0, "total": 5.0}
_FINISHED = replace(OUTCOME, prefill_seconds=1.5, decode_seconds=2.5, num_completion_tokens=11)


def _recorded(outcome: Outcome, regret_seconds: float | None) -> Mapping[str, Mapping[tuple[str, str, str], float]]:
    """Return the sums of the histograms by name, and by term, node and link."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    record_comparison(Metrics(provider.get_meter("test")), Comparison(_RATIOS, regret_seconds), outcome)  # type: ignore[arg-type]
    data = reader.get_metrics_data()
    assert data is not None
    sums: dict[str, dict[tuple[str, str, str], float]] = {}
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.data.data_points:
            assert isinstance(point, HistogramDataPoint)
            labels = point.attributes or {}
            where = tuple(str(labels.get(f"baton.{name}", "")) for name in ("term", "node.id", "link"))
            sums.setdefault(metric.name, {})[where] = point.sum  # type: ignore[index]
    provider.shutdown()
    return sums


def test_each_term_is_of_the_node_or_link_that_it_is_spent_on() -> None:
    """The prompt of who computed it, steps and all together of who decoded, the transfer of the link."""
    ratios = _recorded(_FINISHED, None)

    assert ratios == {
        "baton.placement.prediction_ratio": {
            ("queue", "dgx", ""): 1.0,
            ("prefill", "dgx", ""): 2.0,
            ("transfer", "", "dgx>mac"): 3.0,
            ("step", "mac", ""): 4.0,
            ("total", "mac", ""): 5.0,
        }
    }


@pytest.mark.parametrize(
    ("change", "link"),
    [({}, "dgx>mac"), ({"prefill_node_id": "mac"}, ""), ({"prefill_node_id": "mac", "pull_node_id": "pc"}, "pc>mac")],
)
def test_regret_is_of_the_decode_node_and_its_link(change: dict[str, str], link: str) -> None:
    """In seconds, and as a share of all that the request took."""
    recorded = _recorded(replace(_FINISHED, **change), 1.0)  # type: ignore[arg-type]

    assert recorded["baton.placement.regret"] == {("", "mac", link): 1.0}
    assert recorded["baton.placement.regret_share"] == {("", "mac", link): 0.25}
