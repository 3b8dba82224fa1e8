"""PromQL over the metrics of names.py: an expression can only name what is exported."""

from __future__ import annotations

from baton.telemetry.names import MetricName
from baton.telemetry.prometheus import family_name

WINDOW = "$__rate_interval"
"""Grafana's interval of a rate: as long as a point of the panel, and some scrapes at least."""
SCOPE = 'namespace=~"$namespace"'
"""Selects the deployment that the dashboard shows; matches everything where there are no namespaces."""


def label(attribute: str) -> str:
    """Return what Prometheus calls an attribute of names.py."""
    return attribute.replace(".", "_")


def legend(attribute: str) -> str:
    """Return Grafana's template of an attribute's value."""
    return f"{{{{{label(attribute)}}}}}"


def gauge(metric: MetricName, scope: str = SCOPE) -> str:
    """Return the values of a gauge."""
    return f"{family_name(metric.name, metric.unit, is_gauge=True)}{{{scope}}}"


def per_second(metric: MetricName, by: str = "", *, window: str = WINDOW, scope: str = SCOPE) -> str:
    """Return how fast a counter grows, summed by an attribute; 0 where it has never been touched."""
    rate = f"rate({family_name(metric.name, metric.unit)}_total{{{scope}}}[{window}])"
    return f"sum by ({label(by)}) ({rate}) or vector(0)" if by else f"(sum({rate}) or vector(0))"


def quantile(share: float, metric: MetricName, *by: str, window: str = WINDOW, scope: str = SCOPE) -> str:
    """Return a quantile of a histogram's recent values, for each value of the attributes that are named."""
    labels = ", ".join(("le", *map(label, by)))
    buckets = f"rate({family_name(metric.name, metric.unit)}_bucket{{{scope}}}[{window}])"
    return f"histogram_quantile({share:g}, sum by ({labels}) ({buckets}))"


def part(metric: MetricName, name: str, extra: str = "", *, window: str = WINDOW, scope: str = SCOPE) -> str:
    """Return how fast the `sum`, the `count` or a `bucket` of a histogram grows, over all of its series."""
    selector = f"{scope}, {extra}" if extra and scope else scope + extra
    return f"sum(rate({family_name(metric.name, metric.unit)}_{name}{{{selector}}}[{window}]))"


def mean(metric: MetricName, *, window: str = WINDOW, scope: str = SCOPE) -> str:
    """Return the mean of a histogram's recent values."""
    total, count = (part(metric, name, window=window, scope=scope) for name in ("sum", "count"))
    return f"{total} / {count}"
