"""Command-line flags of a settings class: one `--field-name VALUE` per field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pydantic import BaseModel, SecretStr

from baton.errors import ConfigurationError

REPEATABLE = "repeatable"
"""Key in a field's `json_schema_extra`: its flag may be given several times; the values are joined by commas."""

_SECRET_ENDINGS = ("_key", "_keys", "_secret", "_password", "_credentials")
_MASK = "**********"


class FlagHelp(NamedTuple):
    """What `--help` says of a field."""

    flag: str
    type_name: str
    default: str
    description: str


def parse_flags(settings_class: type[BaseModel], arguments: Sequence[str]) -> Mapping[str, str]:
    """Return values by field name from `--name value`, `--name=value` and, for booleans, `--name` and `--no-name`.

    Raises:
        ConfigurationError: If an argument is no flag of the class, lacks its value, or is given twice.
    """
    values: dict[str, str] = {}
    remaining = list(arguments)
    while remaining:
        flag, equals, value = remaining.pop(0).partition("=")
        name, implied = _field_of(settings_class, flag)
        if name in values and not _is_repeatable(settings_class, name):
            raise ConfigurationError(f"flag {flag} is given twice")
        if not equals:
            if implied is not None:
                value = implied
            elif remaining and not _is_flag(settings_class, remaining[0]):
                value = remaining.pop(0)
            else:
                raise ConfigurationError(f"flag {flag} needs a value")
        values[name] = f"{values[name]},{value}" if name in values else value
    return values


def flag_of(name: str) -> str:
    """Return the flag of a field."""
    return "--" + name.replace("_", "-")


def flag_help(settings_class: type[BaseModel]) -> Sequence[FlagHelp]:
    """Return a line of help per field, in the order of the class."""
    lines = []
    for name, field in settings_class.model_fields.items():
        type_name = getattr(field.annotation, "__name__", None) or str(field.annotation)
        default = "required" if field.is_required() else str(field.get_default(call_default_factory=True))
        lines.append(FlagHelp(flag_of(name), type_name, default, field.description or ""))
    return lines


def describe_settings(settings: BaseModel) -> str:
    """Return `name=value` of all fields on one line; secrets are masked."""
    return " ".join(f"{name}={_shown(name, getattr(settings, name))}" for name in type(settings).model_fields)


def _field_of(settings_class: type[BaseModel], flag: str) -> tuple[str, str | None]:
    name = flag.removeprefix("--").replace("-", "_")
    fields = settings_class.model_fields
    if flag.startswith("--") and name in fields:
        return name, "true" if fields[name].annotation is bool else None
    negated = name.removeprefix("no_")
    if flag.startswith("--no-") and negated in fields and fields[negated].annotation is bool:
        return negated, "false"
    raise ConfigurationError(f"unknown flag {flag}; this service takes {', '.join(map(flag_of, fields))}")


def _is_repeatable(settings_class: type[BaseModel], name: str) -> bool:
    extra = settings_class.model_fields[name].json_schema_extra
    return isinstance(extra, dict) and bool(extra.get(REPEATABLE))


def _is_flag(settings_class: type[BaseModel], argument: str) -> bool:
    name = argument.partition("=")[0]
    return name.startswith("--") and name.removeprefix("--").replace("-", "_") in settings_class.model_fields


def _shown(name: str, value: object) -> str:
    is_secret = isinstance(value, SecretStr) or name.endswith(_SECRET_ENDINGS)
    return _MASK if is_secret and value else str(value)
