"""TOML files, and their tables: `[[node]]` of `baton up` and of machines that join, `[[model]]` of what is wanted."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from baton.errors import ConfigurationError

WEIGHT_SOURCES = "weight_sources"
"""Key for machines that join, and none of their workers': with commas, host:port of nodes that have the model, or :port
where the router is."""


def read_toml(path: Path, name: str) -> dict[str, Any]:
    """Return what a file has; raise ConfigurationError with its name if it cannot be read."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{name}: {error}") from error


def read_tables(path: Path, name: str, key: str = "node") -> Mapping[str, Mapping[str, object]]:
    """Return tables by their names in errors, `NAME: node[0]`; raise ConfigurationError if the file has others."""
    document = read_toml(path, name)
    tables = document.get(key, [])
    unknown = [*sorted(set(document) - {key}), *(() if isinstance(tables, list) else (key,))]
    if unknown:
        raise ConfigurationError(f"{name}: unknown key {unknown[0]}: expected [[{key}]] tables")
    return {f"{name}: {key}[{index}]": table for index, table in enumerate(tables)}


def setting_text(value: object) -> str:
    """Return a value of a table as a flag or a variable has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
