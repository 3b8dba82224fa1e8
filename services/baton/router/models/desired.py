"""The models that an operator wants: the `[[model]]` tables of a TOML file, written back when they change.

```toml
[[model]]
name = "llama"
source = "/models/llama"          # or org/name[@revision]
min_replicas = 2                  # default 1
max_replicas = 3                  # default 0: as many as it fits on
pinned_machines = ["mac"]
excluded_machines = ["laptop"]
is_on_demand = true               # a request loads it
keep_alive_seconds = 300          # then, without a request, it is unloaded
is_unloaded = true                # known, but not wanted now
```
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from baton.config.node_tables import read_tables
from baton.errors import ConfigurationError, InvalidFieldError
from baton.internal.v1.model_service_pb2 import DesiredModel
from baton.router.models.lease import Lease

log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 300
"""Of a model that says none."""
_MAX_NAME_CHARACTERS = 200
_FIELDS: Mapping[str, tuple[str, type]] = {
    "name": ("name", str),
    "source": ("source", str),
    "min_replicas": ("min_replica_count", int),
    "max_replicas": ("max_replica_count", int),
    "pinned_machines": ("pinned_machines", list),
    "excluded_machines": ("excluded_machines", list),
    "is_on_demand": ("is_on_demand", bool),
    "is_unloaded": ("is_unloaded", bool),
}
"""Keys of a table: the field of the message, and its type."""


class DesiredModels:
    """The desired state. Every change is in the file before it counts.

    `file`: read when this process begins to lead, and when somebody else changes it; made at the first change. None:
    nothing outlives the process. `lease`: by which one of several processes leads; None: by a lock of the file.
    """

    def __init__(self, file: Path | None = None, lease: Lease | None = None) -> None:
        self._file = file
        self._lease = lease
        self._models: dict[str, DesiredModel] = {}
        self._lock = -1
        self._read_at = (0, 0)

    def __iter__(self) -> Iterator[DesiredModel]:
        return iter([self._models[name] for name in sorted(self._models)])

    def get(self, name: str) -> DesiredModel | None:
        """Return what is wanted of a model; None: nobody has asked for it."""
        return self._models.get(name)

    def lead(self) -> bool:
        """Return whether this process, the first to ask, may change the file; raise ConfigurationError if none can."""
        if self._lease is not None and not self._lease.is_held:
            return False
        if self._file is None or self._lock >= 0 or self._lease is not None:
            self._refresh()
            return True
        lock = os.open(f"{self._file}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        self._lock = lock
        self._refresh()
        return True

    def _refresh(self) -> None:
        """Read the file again if it is another one than before; one with a mistake does not count once one was read."""
        if self._file is None or not self._file.exists():
            return
        found = self._file.stat()
        if self._read_at == (found.st_ino, found.st_mtime_ns):
            return
        is_first, self._read_at = self._read_at == (0, 0), (found.st_ino, found.st_mtime_ns)
        try:
            self._models = {each.name: each for each in read_desired(self._file)}
        except ConfigurationError as error:
            if is_first:
                raise
            log.warning("models_file_ignored cause=%r", error.message)

    def close(self) -> None:
        """Let another process lead."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def put(self, model: DesiredModel) -> None:
        """Want a model as it says; raise InvalidFieldError if it is wrong, ConfigurationError if writing fails."""
        check_desired(model)
        self._keep(self._models | {model.name: model})

    def remove(self, name: str) -> None:
        """Know a model no more; raise ConfigurationError if writing fails."""
        self._keep({each: model for each, model in self._models.items() if each != name})

    def _keep(self, models: dict[str, DesiredModel]) -> None:
        if self._file is not None:
            _write(self._file, models)
        self._models = models


def check_desired(model: DesiredModel) -> None:
    """Check what is wanted of a model; raise InvalidFieldError if a field is wrong."""
    if not (1 <= len(model.name) <= _MAX_NAME_CHARACTERS and model.name.isprintable()):
        raise InvalidFieldError("name", f"expected 1 to {_MAX_NAME_CHARACTERS} printable characters")
    if not model.source:
        raise InvalidFieldError("source", f"expected a folder, or org/name[@revision], of the new model {model.name}")
    if wrong := [
        each for each in (model.source, *model.pinned_machines, *model.excluded_machines) if not each.isprintable()
    ]:
        raise InvalidFieldError(
            "source", f"expected printable characters, here and in names of machines, got {wrong[0]!r}"
        )
    for field in ("min_replica_count", "max_replica_count"):
        if not 0 <= getattr(model, field) <= 1024:
            raise InvalidFieldError(field, f"expected 0 to 1024, got {getattr(model, field)}")
    if 0 < model.max_replica_count < model.min_replica_count:
        problem = f"expected {model.min_replica_count} or more, as the fewest are, got {model.max_replica_count}"
        raise InvalidFieldError("max_replica_count", problem)
    if both := set(model.pinned_machines) & set(model.excluded_machines):
        raise InvalidFieldError("excluded_machines", f"{min(both)} is among the pinned machines too")


def read_desired(file: Path) -> list[DesiredModel]:
    """Return the models of a file; raise ConfigurationError naming what is unreadable, unknown or wrong."""
    return [_model(table, where) for where, table in read_tables(file, str(file), "model").items()]


def _model(table: Mapping[str, object], where: str) -> DesiredModel:
    model = DesiredModel()
    for key, value in table.items():
        if key == "keep_alive_seconds" and isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            model.keep_alive.FromSeconds(value)
            continue
        field, kind = _FIELDS.get(key, ("", object))
        is_right = type(value) is kind and (kind is not list or all(isinstance(each, str) for each in value))  # type: ignore[attr-defined]
        if not is_right:
            known = ", ".join((*_FIELDS, "keep_alive_seconds"))
            expected = f"expected {kind.__name__}, got {value!r}" if field else f"unknown key; known are {known}"
            raise ConfigurationError(f"{where}.{key}: {expected}")
        if kind is list:
            getattr(model, field).extend(value)
        else:
            setattr(model, field, value)
    try:
        check_desired(model)
    except InvalidFieldError as error:
        raise ConfigurationError(f"{where}: {error.message}") from error
    return model


def _write(file: Path, models: Mapping[str, DesiredModel]) -> None:
    """Replace the file at once: who reads it sees it before or after, and never a part."""
    lines = []
    for name in sorted(models):
        model = models[name]
        values = {key: getattr(model, field) for key, (field, _) in _FIELDS.items()}
        values["keep_alive_seconds"] = model.keep_alive.seconds
        shown = {key: list(value) if key.endswith("machines") else value for key, value in values.items()}
        lines += [
            "[[model]]",
            *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in shown.items() if value),
            "",
        ]
    part = file.with_name(f".{file.name}.part")
    try:
        with part.open("w", encoding="utf-8") as opened:
            opened.write("\n".join(lines))
            opened.flush()
            os.fsync(opened.fileno())
        part.replace(file)
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}") from error
