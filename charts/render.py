"""Renders the chart without a cluster, by Helm's own library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias, cast

import helm_python
import yaml

CHART = Path(__file__).parent / "baton"
EXAMPLES = CHART / "examples"
RELEASE, NAMESPACE = "baton", "llm"

Manifest: TypeAlias = dict[str, object]

_SEPARATOR = re.compile(r"^---\s*$", re.MULTILINE)


def render(values: Mapping[str, object], *, release: str = RELEASE, namespace: str = NAMESPACE) -> dict[str, str]:
    """Return rendered text by template's path, NOTES.txt included.

    Raises:
        helm_python.HelmError: If the values break the schema or a check; the message names the key.
    """
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(dict(values))
        return chart.render(dict(values), name=release, namespace=namespace, is_install=True)


def manifests_of(rendered: Mapping[str, str]) -> list[Manifest]:
    """Return all objects of a rendering, in the order of their templates."""
    texts = (text for path, text in sorted(rendered.items()) if path.endswith(".yaml"))
    return [cast(Manifest, manifest) for text in texts for manifest in yaml.safe_load_all(text) if manifest]


def golden_text(rendered: Mapping[str, str]) -> str:
    """Return a rendering as one file: its documents with their templates' names, and the notes."""
    parts = []
    for path, text in sorted(rendered.items()):
        documents = [part.strip() for part in _SEPARATOR.split(text)] if path.endswith(".yaml") else []
        parts += [f"---\n# Source: {path}\n{document}\n" for document in documents if document]
    notes = next(text for path, text in rendered.items() if path.endswith("NOTES.txt"))
    return "".join(parts) + "---\n" + "".join(f"# {line}".rstrip() + "\n" for line in notes.strip().splitlines())


def read_example(name: str) -> Mapping[str, object]:
    """Return the values of an example by its name without ending."""
    return cast(Mapping[str, object], yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text("utf-8")))


def example_names() -> list[str]:
    """Return the names of all examples."""
    return sorted(path.stem for path in EXAMPLES.glob("*.yaml"))
