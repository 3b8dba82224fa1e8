"""The alerts of the chart, as Prometheus's rules.

Source: https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from baton.telemetry import names
from charts.queries import gauge, label, part, per_second, quantile

_WINDOW = "5m"


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that a person should look at."""

    name: str
    """In camel case."""
    expression: str
    """PromQL; what it yields is wrong."""
    lasting: str
    """Time for which it must be."""
    severity: str
    """"critical": requests fail; "warning": they are slower than they need be."""
    summary: str
    """What is wrong and where to look; templates of Prometheus stand in it."""


def _rate(metric: names.MetricName) -> str:
    return per_second(metric, window=_WINDOW, scope="")


def _failing() -> str:
    count = "rate(baton_gateway_request_duration_seconds_count{SCOPE}[5m])"
    failed = count.replace("SCOPE", 'baton_status=~"5..|INTERNAL|UNAVAILABLE|DEADLINE_EXCEEDED"')
    return f"sum({failed}) / sum({count.replace('{SCOPE}', '')}) > 0.02"


def _predicted_badly() -> str:
    total = 'baton_term="total"'
    outside = part(names.PREDICTION_RATIO, "bucket", f'{total}, le="2"', window="30m", scope="")
    return f"1 - {outside} / {part(names.PREDICTION_RATIO, 'count', total, window='30m', scope='')} > 0.2"


_DRIFT_REQUESTS = 20
"""Outcomes in ten minutes below which a median says nothing."""


def _drifting() -> str:
    """Return the medians outside of 0.67 to 1.5, for each term of each node and link that has outcomes enough."""
    by = (names.TERM, names.NODE_ID, names.LINK)
    median = quantile(0.5, names.PREDICTION_RATIO, *by, window="10m", scope="")
    count = f"sum by ({', '.join(map(label, by))}) (increase(baton_placement_prediction_ratio_count[10m]))"
    return f"({median} > 1.5 or {median} < 0.67) and {count} >= {_DRIFT_REQUESTS}"


ALERTS = (
    Alert(
        "BatonWithoutNodes",
        f"absent({gauge(names.NODE_QUEUE, '')})",
        "2m",
        "critical",
        "No node exports its load: no pool has a pod that serves, or nothing scrapes them.",
    ),
    Alert(
        "BatonRequestsFail",
        _failing(),
        "5m",
        "critical",
        "{{ $value | humanizePercentage }} of the requests fail: see the gateway's log by request id.",
    ),
    Alert(
        "BatonEngineHangs",
        f"{gauge(names.NODE_RUNNING, '')} > 0 and rate({names.NODE_PASSES.name.replace('.', '_')}_total[1m]) == 0",
        "1m",
        "critical",
        "{{ $labels.baton_node_id }} has requests in its batch and computes no pass.",
    ),
    Alert(
        "BatonCertificateNotRenewed",
        f"{_rate(names.RENEWAL_FAILURES)} > 0",
        "15m",
        "critical",
        "A process gets no new certificate, and is not believed once its own ends: see renewal_failed in logs.",
    ),
    Alert(
        "BatonFirstTokenSlow",
        f"{quantile(0.95, names.TIME_TO_FIRST_TOKEN, window=_WINDOW, scope='')} > 5",
        "10m",
        "warning",
        "The slowest 5 % wait {{ $value | humanizeDuration }} for the first token: see queue and placement.",
    ),
    Alert(
        "BatonQueueLong",
        f"{gauge(names.NODE_QUEUE, '')} > 10",
        "10m",
        "warning",
        "A prompt waits {{ $value | humanizeDuration }} on {{ $labels.baton_node_id }}: the pool wants more nodes.",
    ),
    Alert(
        "BatonSheds",
        f"{_rate(names.REFUSALS)} / ({_rate(names.REFUSALS)} + {_rate(names.PLACEMENTS)}) > 0.05",
        "10m",
        "warning",
        "{{ $value | humanizePercentage }} of the requests are refused for overload: the pools want more nodes.",
    ),
    Alert(
        "BatonKvFull",
        f"{gauge(names.NODE_KV_USED, '')} > 0.95",
        "10m",
        "warning",
        "{{ $labels.baton_node_id }} has hardly a KV block left: requests wait or are computed again.",
    ),
    Alert(
        "BatonPrefillsGivenUp",
        f"{_rate(names.FALLBACKS)} / {_rate(names.PLACEMENTS)} > 0.05",
        "10m",
        "warning",
        "{{ $value | humanizePercentage }} of the placements lose their remote prefill: see reasons by KV transport.",
    ),
    Alert(
        "BatonTransferExposed",
        f"{part(names.EXPOSED_TRANSFER, 'sum', window=_WINDOW, scope='')}"
        f" / {part(names.KV_TRANSFER, 'sum', window=_WINDOW, scope='')} > 0.5",
        "15m",
        "warning",
        "{{ $value | humanizePercentage }} of the KV transfer is not hidden: the link is slower than it was measured.",
    ),
    Alert(
        "BatonPredictsBadly",
        _predicted_badly(),
        "30m",
        "warning",
        "{{ $value | humanizePercentage }} of the requests take more than twice their estimate.",
    ),
    Alert(
        "BatonPredictionDrifts",
        _drifting(),
        "10m",
        "warning",
        "{{ $labels.baton_term }} takes {{ $value | humanize }} times its estimate on"
        " {{ $labels.baton_node_id }}{{ $labels.baton_link }}: ask `baton explain` about a request, `baton nodes` about"
        " the profile.",
    ),
)


def rules() -> Mapping[str, object]:
    """Return the rules as a group of Prometheus, and as the `spec` of a PrometheusRule."""
    return {
        "groups": [
            {
                "name": "baton",
                "rules": [
                    {
                        "alert": alert.name,
                        "expr": alert.expression,
                        "for": alert.lasting,
                        "labels": {"severity": alert.severity},
                        "annotations": {"summary": alert.summary},
                    }
                    for alert in ALERTS
                ],
            }
        ]
    }
