"""Reads the chart's values.yaml: keys, defaults, and the comments that document them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import yaml

_DOC = "# -- "
_TAGS = ("# @schema ", "# @settings ", "# @pools ", "# @ref ", "# @assignments ")


@dataclass(frozen=True, slots=True)
class Value:
    """One key of values.yaml."""

    path: str
    """Dotted path, e.g. "gateway.service.type"."""
    default: object
    """What it is unless it is set."""
    description: str
    """What follows `# --` above it, on one line."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """What follows `# @TAG` above it, by tag."""
    children: tuple[Value, ...] = ()
    """Documented keys below it; none if it is a leaf."""

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rpartition(".")[2]

    @property
    def extra_schema(self) -> dict[str, object]:
        """What `# @schema` adds."""
        return cast(dict[str, object], json.loads(self.tags.get("schema", "{}")))

    def walk(self) -> Iterator[Value]:
        """Yield this value and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


def read_values(path: Path) -> tuple[Value, ...]:
    """Return the top-level values of a file.

    Raises:
        ValueError: If a key of a mapping whose other keys are documented has no `# --` comment.
    """
    text = path.read_text("utf-8")
    node = yaml.compose(text, yaml.SafeLoader)
    assert isinstance(node, yaml.MappingNode)
    return _children(node, yaml.safe_load(text), text.splitlines(), "")


def _children(
    node: yaml.MappingNode, defaults: Mapping[str, object], lines: list[str], prefix: str
) -> tuple[Value, ...]:
    values = []
    for key_node, value_node in node.value:
        path = f"{prefix}{key_node.value}"
        description, tags = _comment_above(lines, key_node.start_mark.line)
        if not description:
            raise ValueError(f"{path} has no comment that begins with {_DOC.strip()}")
        default = defaults[key_node.value]
        is_opaque = json.loads(tags.get("schema", "{}")).get("opaque", False)
        is_branch = isinstance(value_node, yaml.MappingNode) and value_node.value and not is_opaque
        below = _children(value_node, cast(Mapping[str, object], default), lines, f"{path}.") if is_branch else ()
        values.append(Value(path, default, description, tags, below))
    return tuple(values)


def _comment_above(lines: list[str], line: int) -> tuple[str, dict[str, str]]:
    """Return the description and tags in the block of comments that ends above a line."""
    block: list[str] = []
    while line > 0 and lines[line - 1].strip().startswith("#"):
        line -= 1
        block.insert(0, lines[line].strip())
    description: list[str] = []
    tags: dict[str, str] = {}
    for text in block:
        tag = next((tag for tag in _TAGS if text.startswith(tag)), "")
        if tag:
            tags[tag.removeprefix("# @").strip()] = text.removeprefix(tag)
        elif text.startswith(_DOC):
            description = [text.removeprefix(_DOC)]
        elif description:
            description.append(text.removeprefix("#").strip())
    return " ".join(description), tags
