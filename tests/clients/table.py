"""The table client by feature: bench/results/clients.json, which keeps the last run of each client, and clients.md."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bench.results_file import describe_machine, write_results
from tests.clients.environments import versions_of
from tests.clients.plan import ROOT, Client, all_clients
from tests.clients.runs import Outcome

RESULTS = ROOT / "bench" / "results" / "clients.json"


class Table:
    """Takes what clients' scripts said, and writes it in place of what they said before."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[str, Any]] = {}

    def add(self, client: Client, outcomes: Mapping[str, Outcome]) -> None:
        """Take the outcomes of one client."""
        machine = describe_machine()
        about = {key: machine[key] for key in ("time", "commit", "is_modified")}
        cells = {name: {key: value for key, value in asdict(each).items() if value} for name, each in outcomes.items()}
        self._lines[client.name] = {**about, "versions": list(versions_of(client)), "cells": cells}

    def write(self) -> None:
        """Write both files; cells that were not run this time are kept as they were."""
        known: dict[str, Any] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
        lines = {name: self._merged(known, client) for name, client in all_clients().items()}
        lines = {name: line for name, line in lines.items() if line}
        machine = describe_machine()
        about = {key: machine[key] for key in ("platform", "processor", "cores", "python")}
        write_results(RESULTS, {"machine": about, **lines})
        RESULTS.with_suffix(".md").write_text(markdown(lines), "utf-8")

    def _merged(self, known: Mapping[str, Any], client: Client) -> dict[str, Any]:
        before, line = known.get(client.name, {}), self._lines.get(client.name)
        if line is None:
            return dict(before)
        cells = {**before.get("cells", {}), **line["cells"]}
        return {**line, "cells": {name: cells[name] for name in client.features if name in cells}}


def markdown(lines: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table of clients of the REST APIs and one of gRPC clients, each with why cells failed below it."""
    clients = all_clients()
    legend = (
        '"ok" or what was measured, **FAIL**, skipped, not run (?), does not apply (-); * with changes not committed.'
    )
    parts = ["Written by `make clients`. " + legend]
    for title, is_grpc in (("REST", False), ("gRPC", True)):
        part = {name: client for name, client in clients.items() if bool(client.page) is is_grpc}
        parts += ["", f"## {title}", "", *_table({name: lines[name] for name in lines if name in part}, part)]
    return "\n".join(parts).rstrip() + "\n"


def _table(lines: Mapping[str, Mapping[str, Any]], clients: Mapping[str, Client]) -> list[str]:
    features = list(dict.fromkeys(name for client in clients.values() for name in client.features))
    head = ["client", "versions", *(name.replace("_", " ") for name in features), "commit"]
    rows, faults = [], []
    for name, line in lines.items():
        cells = [_mark(line["cells"].get(feature), feature in clients[name].features) for feature in features]
        commit = line["commit"][:8] + ("*" if line["is_modified"] else "")
        rows.append([clients[name].title, ", ".join(line["versions"]) or "-", *cells, commit])
        reasons: dict[str, list[str]] = defaultdict(list)
        for feature, cell in line["cells"].items():
            if reason := cell.get("error") or cell.get("skip"):
                reasons[reason].append(feature)
        faults += [f"- **{clients[name].title}, {', '.join(where)}**: {reason}" for reason, where in reasons.items()]
    text = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
    return [*text, "", *faults]


def _mark(cell: Mapping[str, Any] | None, does_apply: bool) -> str:
    if not does_apply:
        return "-"
    if cell is None:
        return "?"
    if "skip" in cell:
        return "skipped"
    return "**FAIL**" if "error" in cell else str(cell.get("note", "ok"))
