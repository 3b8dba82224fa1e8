"""Fills settings classes: flag > environment > TOML file > default; anything wrong is reported under its key."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import AliasChoices, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsError

from baton.errors import ConfigurationError

SettingsT = TypeVar("SettingsT", bound=BaseSettings)

ROLES = ("gateway", "router", "cache-index", "prefill", "decode", "agent")
"""Services that `baton serve` knows, which are also the tables that a settings file may have."""


class _Source(NamedTuple):
    """One layer of settings, and how it names a key."""

    values: Mapping[str, object]
    pattern: str
    """Format string with {flag}, {variable} and {key}."""


def load_settings(
    settings_class: type[SettingsT],
    flags: Mapping[str, object],
    file_values: Mapping[str, object] | None = None,
    *,
    file_name: str = "the settings file",
) -> SettingsT:
    """Return the settings of a service.

    Args:
        settings_class: The pydantic-settings class of the service.
        flags: Values by field name, as given on the command line.
        file_values: Values by field name, as read from a file.
        file_name: How errors name the file.

    Raises:
        ConfigurationError: If a key is unknown or its value is invalid; the message names the key as the user wrote it.
    """
    prefix = str(settings_class.model_config.get("env_prefix", ""))
    try:
        environment = EnvSettingsSource(settings_class)()
    except SettingsError as error:
        raise ConfigurationError(f"environment {prefix}*: {error}") from error
    sources = (
        _Source(flags, "flag {flag}"),
        _Source(environment, "environment variable {variable}"),
        _Source(file_values or {}, f"key {{key}} in {file_name}"),
    )
    _check_known(settings_class, sources, prefix)
    merged: dict[str, object] = {}
    for source in reversed(sources):
        merged.update({init_key(settings_class, name): value for name, value in source.values.items()})
    try:
        return settings_class(**merged)  # type: ignore[arg-type]
    except ValidationError as error:
        raise ConfigurationError(_describe(error, settings_class, sources, prefix)) from error


def read_file(path: Path, role: str) -> Mapping[str, object]:
    """Return the table of a role in a TOML settings file, which has one table per role.

    Raises:
        ConfigurationError: If the file cannot be read, is not TOML, or has a table or key that no role owns.
    """
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}") from error
    for name, table in tables.items():
        if name not in ROLES or not isinstance(table, dict):
            raise ConfigurationError(f"{path}: unknown key {name}; expected tables named {', '.join(ROLES)}")
    values = tables.get(role, {})
    return {key.replace("-", "_"): value for key, value in values.items()}


def init_key(settings_class: type[BaseSettings], name: str) -> str:
    """Return the name under which a field is passed to its class: its alias where only that is taken."""
    field = settings_class.model_fields.get(name)
    config = settings_class.model_config
    if (
        field is None
        or field.validation_alias is None
        or config.get("populate_by_name")
        or config.get("validate_by_name")
    ):
        return name
    alias = field.validation_alias
    if isinstance(alias, AliasChoices):
        alias = next((choice for choice in alias.choices if isinstance(choice, str)), name)
    return alias if isinstance(alias, str) else name


def _check_known(settings_class: type[BaseSettings], sources: tuple[_Source, ...], prefix: str) -> None:
    known = set(settings_class.model_fields)
    aliases = {init_key(settings_class, name) for name in known}
    for source in sources:
        for key in source.values:
            if key not in known and key not in aliases:
                raise ConfigurationError(f"unknown {_name(source.pattern, key, prefix)}")


def _describe(
    error: ValidationError, settings_class: type[BaseSettings], sources: tuple[_Source, ...], prefix: str
) -> str:
    names = {init_key(settings_class, name): name for name in settings_class.model_fields}
    problems = []
    for detail in error.errors(include_url=False, include_input=False):
        problem = detail["msg"].removeprefix("Value error, ")
        if not detail["loc"]:
            problems.append(problem)
            continue
        key = names.get(str(detail["loc"][0]), str(detail["loc"][0]))
        owners = [
            source for source in sources if key in source.values or init_key(settings_class, key) in source.values
        ]
        pattern = owners[0].pattern if owners else "flag {flag} (environment variable {variable})"
        problems.append(f"{_name(pattern, key, prefix)}: {problem}")
    return "; ".join(problems)


def _name(pattern: str, key: str, prefix: str) -> str:
    return pattern.format(flag="--" + key.replace("_", "-"), variable=(prefix + key).upper(), key=key)
