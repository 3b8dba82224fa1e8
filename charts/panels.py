"""Grafana panels and dashboards as values, and their JSON.

Source: https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Json: TypeAlias = dict[str, object]
Kind = Literal["timeseries", "stat", "heatmap", "table", "traces"]

_COLUMNS = 24
_HEIGHT = 8
_PROMETHEUS = {"type": "prometheus", "uid": "${prometheus}"}
_TEMPO = {"type": "tempo", "uid": "${tempo}"}


@dataclass(frozen=True, slots=True)
class Query:
    """One line or group of lines of a panel."""

    expression: str
    """PromQL, or TraceQL on panels of traces."""
    legend: str = ""
    """How Grafana names a line; `{{label}}` stands for a label's value."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture."""

    title: str
    """What it shows."""
    description: str
    """How to read it."""
    queries: Sequence[Query]
    """What it asks for."""
    unit: str = "short"
    """Grafana's id of the unit."""
    kind: Kind = "timeseries"
    """How it is drawn."""
    width: int = 8
    """Columns of 24."""
    needs_sensors: bool = False
    """Whether machines without some sensor have no data for it."""

    @property
    def is_of_traces(self) -> bool:
        """Return whether it asks Tempo rather than Prometheus."""
        return self.kind in ("table", "traces")


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One page."""

    name: str
    """Of its file, and part of its address."""
    title: str
    """For people."""
    panels: Sequence[Panel]
    """From top left, row by row."""

    def to_json(self) -> Json:
        """Return Grafana's model of it."""
        return {
            "uid": f"baton-{self.name}",
            "title": f"Baton / {self.title}",
            "tags": ["baton"],
            "editable": False,
            "schemaVersion": 39,
            "refresh": "10s",
            "time": {"from": "now-1h", "to": "now"},
            "templating": {"list": self._variables()},
            "links": [{"type": "dashboards", "tags": ["baton"], "title": "Baton", "asDropdown": True}],
            "panels": list(self._placed()),
        }

    def _variables(self) -> list[Json]:
        kinds = ["prometheus", "tempo"] if any(panel.is_of_traces for panel in self.panels) else ["prometheus"]
        sources: list[Json] = [{"name": kind, "type": "datasource", "query": kind} for kind in kinds]
        namespace: Json = {
            "name": "namespace",
            "type": "query",
            "datasource": _PROMETHEUS,
            "query": "label_values(baton_node_queue_seconds, namespace)",
            "refresh": 2,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }
        return [*sources, namespace]

    def _placed(self) -> Sequence[Json]:
        placed, column, row = [], 0, 0
        for number, panel in enumerate(self.panels, 1):
            if column + panel.width > _COLUMNS:
                column, row = 0, row + _HEIGHT
            placed.append(_panel_json(panel, number, {"x": column, "y": row, "w": panel.width, "h": _HEIGHT}))
            column += panel.width
        return placed


def _panel_json(panel: Panel, number: int, position: Json) -> Json:
    source = _TEMPO if panel.is_of_traces else _PROMETHEUS
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": source,
        "gridPos": position,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [_target(panel, query, chr(ord("A") + index)) for index, query in enumerate(panel.queries)],
    }


def _target(panel: Panel, query: Query, letter: str) -> Json:
    if panel.kind == "traces":
        return {"refId": letter, "datasource": _TEMPO, "queryType": "traceql", "query": query.expression}
    if panel.kind == "table":
        return {
            "refId": letter,
            "datasource": _TEMPO,
            "queryType": "traceql",
            "query": query.expression,
            "tableType": "traces",
            "limit": 50,
        }
    target: Json = {
        "refId": letter,
        "datasource": _PROMETHEUS,
        "expr": query.expression,
        "legendFormat": query.legend or "__auto",
        "exemplar": panel.kind == "heatmap",
    }
    return target | {"format": "heatmap"} if panel.kind == "heatmap" else target
