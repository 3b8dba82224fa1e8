"""Settings of services: classes of grouped fields, filled by flag > environment > TOML file > default.

pydantic-settings reads the environment and checks the values. Its command line (2.16) is no substitute for
`parse_flags`: of a flag given twice the last wins in silence, `--ui=false` is refused, and its errors name a field,
where users need the flag, variable or key that they wrote.
"""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeVar, get_args, get_origin

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from baton.config.node_tables import read_toml
from baton.errors import ConfigurationError

ROLES = ("gateway", "router", "cache-index", "prefill", "decode", "worker", "agent")
"""Services that `baton serve` knows, which are also the tables that a settings file may have."""

REPEATABLE = "repeatable"
"""Key in a field's `json_schema_extra`: its flag may be given several times; the values are joined by commas."""

PROCESS_INDEX_VARIABLE = "BATON_PROCESS_INDEX"
"""Tells one of several processes of one service which it is, from 0; set by the parent that starts them."""

SettingsT = TypeVar("SettingsT", bound=BaseSettings)

_LIKENESS = 0.65
"""Of a name and the one that was meant: 1 is the same."""
_SECRET_ENDINGS = ("_key", "_keys", "_secret", "_password", "_credentials")
_MASK = "**********"


class ServiceSettings(BaseSettings):
    """Base of the settings of services, and of the groups that they are made of; subclasses set `env_prefix`."""

    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, protected_namespaces=()
    )

    group: ClassVar[str] = ""
    """Heading, in help and documents, of the fields that a class brings in."""
    aliases: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Fields that a flag stands for, by the name under which other services have it."""


class FlagHelp(NamedTuple):
    """What help and documents say of a field."""

    flag: str
    type_name: str
    default: str
    description: str


class SettingsGroup(NamedTuple):
    """Fields that belong together."""

    title: str
    fields: Sequence[str]
    """Names, in the order of the class."""


class _Sources(NamedTuple):
    """Where the values of one service come from; the first that has a key wins."""

    flags: Mapping[str, object]
    variables: Collection[str]
    """Environment variables with the service's prefix, as keys; those of no setting too."""
    file_values: Mapping[str, object]
    prefix: str
    file_name: str

    def name_of(self, key: str) -> str:
        """Return a key as the user wrote it, in the source that wins."""
        flag, variable = f"flag {flag_of(key)}", f"environment variable {self.prefix}{key.upper()}"
        if key in self.flags:
            return flag
        if key in self.variables:
            return variable
        return f"key {key} in {self.file_name}" if key in self.file_values else f"{flag} ({variable})"

    def problems(self, error: ValidationError) -> Iterator[str]:
        """Yield what is wrong, by the keys that the user wrote; what is wrong between fields as it is."""
        for detail in error.errors(include_url=False, include_input=False):
            problem = detail["msg"].removeprefix("Value error, ")
            yield f"{self.name_of(str(detail['loc'][0]))}: {problem}" if detail["loc"] else problem


def load_settings(
    settings_class: type[SettingsT],
    flags: Mapping[str, object],
    file_values: Mapping[str, object] | None = None,
    *,
    file_name: str = "the settings file",
) -> SettingsT:
    """Return the settings of a service; raise ConfigurationError naming a key that is unknown or invalid."""
    prefix = str(settings_class.model_config.get("env_prefix", "")).upper()
    variables = {name.upper().removeprefix(prefix).lower() for name in os.environ if name.upper().startswith(prefix)}
    sources = _Sources(flags, variables, file_values or {}, prefix, file_name)
    for key in (*sources.flags, *sources.file_values):
        if key not in settings_class.model_fields:
            hint = nearest(key, settings_class.model_fields) or f"known are {', '.join(settings_class.model_fields)}"
            raise ConfigurationError(f"unknown {sources.name_of(key)}; {hint}")
    given = {**{key: value for key, value in sources.file_values.items() if key not in variables}, **flags}
    try:
        return settings_class(**given)  # type: ignore[arg-type]
    except SettingsError as error:
        raise ConfigurationError(f"environment {prefix}*: {error}") from error
    except ValidationError as error:
        raise ConfigurationError("; ".join(sources.problems(error))) from error


def process_index() -> int:
    """Return which of several processes of one service this is, from 0; -1: it is the only one, or their parent."""
    return int(os.environ.get(PROCESS_INDEX_VARIABLE, "-1"))


def read_file(path: Path, role: str) -> Mapping[str, object]:
    """Return a role's table of a settings file; raise ConfigurationError if any table or key is no role's."""
    tables = read_toml(path, str(path))
    for name, table in tables.items():
        if name not in ROLES or not isinstance(table, dict):
            raise ConfigurationError(f"{path}: unknown key {name}; expected tables named {', '.join(ROLES)}")
    return {key.replace("-", "_"): value for key, value in tables.get(role, {}).items()}


def parse_flags(settings_class: type[BaseModel], arguments: Sequence[str]) -> Mapping[str, str]:
    """Return values of `--name value`, `--name=value`, `--[no-]name`, by field; raise ConfigurationError for others."""
    values: dict[str, str] = {}
    remaining = list(arguments)
    while remaining:
        flag, equals, value = remaining.pop(0).partition("=")
        if aliased := _aliases(settings_class).get(flag.removeprefix("--")):
            given = [] if equals or not remaining else [remaining.pop(0)]
            value = given[0] if given else value
            remaining[:0] = [f"{flag_of(field)}={value}" for field in aliased if field not in values]
            continue
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


def flag_help(settings_class: type[BaseModel], name: str) -> FlagHelp:
    """Return what there is to say of a field."""
    field = settings_class.model_fields[name]
    default = "required" if field.is_required() else str(field.get_default(call_default_factory=True))
    return FlagHelp(flag_of(name), _type_name(field.annotation), default, " ".join((field.description or "").split()))


def groups_of(settings_class: type[BaseModel]) -> Sequence[SettingsGroup]:
    """Return all fields by group, in the order in which the class names its bases.

    A field belongs to the first class that defined it: another default in a subclass does not move it.
    """
    names: dict[str, list[str]] = {}
    owners = [owner for owner in settings_class.__mro__ if issubclass(owner, BaseModel)]
    by_owner = {owner: set(inspect.get_annotations(owner)) for owner in owners}
    for owner in owners:
        inherited = set().union(*(by_owner[base] for base in owner.__mro__[1:] if base in by_owner))
        title = owner.__dict__.get("group", "") or settings_class.__name__
        fields = [name for name in settings_class.model_fields if name in by_owner[owner] - inherited]
        names.setdefault(title, []).extend(fields)
    return [SettingsGroup(title, fields) for title, fields in names.items() if fields]


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
    flags = [*map(flag_of, fields), *(f"--{alias}" for alias in _aliases(settings_class))]
    hint = nearest(flag, flags) or f"this service takes {', '.join(flags)}"
    raise ConfigurationError(f"unknown flag {flag}; {hint}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the question whether a name that is known was meant; empty where none is like it."""
    found = difflib.get_close_matches(name, list(known), 1, _LIKENESS)
    return f"did you mean {found[0]}?" if found else ""


def _is_repeatable(settings_class: type[BaseModel], name: str) -> bool:
    extra = settings_class.model_fields[name].json_schema_extra
    return isinstance(extra, dict) and bool(extra.get(REPEATABLE))


def _is_flag(settings_class: type[BaseModel], argument: str) -> bool:
    name = argument.partition("=")[0]
    return name.startswith("--") and name.removeprefix("--").replace("-", "_") in settings_class.model_fields


def _aliases(settings_class: type[BaseModel]) -> Mapping[str, Sequence[str]]:
    return getattr(settings_class, "aliases", {})


def _type_name(annotation: object) -> str:
    """Return a type in a word: the values of a choice, the parts of a union but None."""
    if get_origin(annotation) is Literal:
        return "|".join(map(str, get_args(annotation)))
    if get_origin(annotation) is Annotated:
        return _type_name(get_args(annotation)[0])
    if parts := [part for part in get_args(annotation) if part is not NoneType]:
        return "|".join(map(_type_name, parts))
    return getattr(annotation, "__name__", "") or str(annotation)


def _shown(name: str, value: object) -> str:
    is_secret = isinstance(value, SecretStr) or name.endswith(_SECRET_ENDINGS)
    return _MASK if is_secret and value else str(value)
