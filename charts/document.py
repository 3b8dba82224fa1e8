"""Writes what follows from values.yaml, metrics and templates: schema, README table, dashboards, alerts, examples.

python -m charts.document
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import yaml
from pydantic_settings import BaseSettings

from baton.config.settings import flag_help, groups_of
from charts.alerts import rules
from charts.dashboards import DASHBOARDS
from charts.render import CHART, EXAMPLES, example_names, golden_text, read_example, render
from charts.values_file import Value, read_values
from charts.values_schema import CHART_OWNED, SETTINGS, camel_case, values_schema

_BEGIN, _END = "<!-- values: written by `make chart` -->", "<!-- end of values -->"


def documents() -> Mapping[Path, str]:
    """Return the text of every written file by its path; the README keeps what is outside of its marks."""
    values = read_values(CHART / "values.yaml")
    readme = CHART / "README.md"
    schema = json.dumps(values_schema(values), indent=2) + "\n"
    table = _with_table(readme.read_text("utf-8"), values)
    return {CHART / "values.schema.json": schema, readme: table, **_monitoring()}


def goldens() -> Mapping[Path, str]:
    """Return the rendering of every example by the path of its golden file. Needs the schema to be written."""
    folder = EXAMPLES / "rendered"
    return {folder / f"{name}.yaml": golden_text(render(read_example(name))) for name in example_names()}


def main() -> None:
    """Write all files."""
    for group in (documents, goldens):
        for path, text in group().items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")


def _monitoring() -> Mapping[Path, str]:
    files = CHART / "files"
    alerts = yaml.safe_dump(rules(), sort_keys=False, width=1000)
    boards = {board.name: json.dumps(board.to_json(), indent=1) + "\n" for board in DASHBOARDS}
    return {
        files / "alerts.yaml": alerts,
        **{files / "dashboards" / f"{name}.json": text for name, text in boards.items()},
    }


def _with_table(readme: str, values: tuple[Value, ...]) -> str:
    head, _, rest = readme.partition(_BEGIN)
    tail = rest.partition(_END)[2]
    return f"{head}{_BEGIN}\n{_table(values)}\n{_settings_tables()}{_END}{tail}"


def _table(values: tuple[Value, ...]) -> str:
    rows = ["| key | default | meaning |", "|---|---|---|"]
    for root in values:
        for value in root.walk():
            default = "" if value.children else f"`{json.dumps(value.default)}`"
            rows.append(f"| `{value.path}` | {default} | {value.description.replace('|', '&#124;')} |")
    return "\n".join(rows) + "\n"


def _settings_tables() -> str:
    """Return the settings of each role by group, as its `settings` takes them.

    What prefill has too is under decode; a worker has those of both.
    """
    known = {*CHART_OWNED}
    lines = ["## Settings"]
    for role in ("gateway", "router", "cache-index", "decode", "prefill"):
        lines += ["", f"### {role}{', worker' if role in ('decode', 'prefill') else ''}"]
        for group in groups_of(SETTINGS[role]):
            fields = [name for name in group.fields if name not in known]
            if not fields:
                continue
            lines += ["", f"| {group.title} | default | meaning |", "|---|---|---|"]
            lines += [_settings_row(SETTINGS[role], name) for name in fields]
        if role == "decode":
            known |= set(SETTINGS[role].model_fields)
    return "\n".join(lines) + "\n"


def _settings_row(settings_class: type[BaseSettings], name: str) -> str:
    line = flag_help(settings_class, name)
    return f"| `{camel_case(name)}` | `{line.default}` | {line.description.replace('|', '&#124;')} |"


if __name__ == "__main__":
    main()
