"""The `[[node]]` tables of a TOML file: nodes of `baton up`, machines that join."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

from baton.errors import ConfigurationError

WEIGHT_SOURCES = "weight_sources"
"""Key for machines that join, and none of their workers': with commas, host:port of nodes that have the model, or :port
where the router is."""


def read_node_tables(path: Path, name: str) -> Mapping[str, Mapping[str, object]]:
    """Return tables by their names in errors, `NAME: node[0]`; raise ConfigurationError if the file has others."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{name}: {error}") from error
    tables = document.get("node", [])
    unknown = [*sorted(set(document) - {"node"}), *(() if isinstance(tables, list) else ("node",))]
    if unknown:
        raise ConfigurationError(f"{name}: unknown key {unknown[0]}: expected [[node]] tables")
    return {f"{name}: node[{index}]": table for index, table in enumerate(tables)}


def setting_text(value: object) -> str:
    """Return a value of a table as a flag or a variable has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
