"""What machines that join shall run: the `[[node]]` tables of a TOML file.

```toml
[[node]]
node_id = "mac-*"              # which machines, by a pattern with * and ?; default: all
role = "decode"
engine = "mlx"                 # any further key is a setting of `baton serve ROLE`
model_dir = "/models/llama"
```
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast, get_args

from baton.capacity.snapshot import NodeRole
from baton.config.node_tables import read_tables, setting_text
from baton.errors import ConfigurationError, NotFoundError

_RESERVED = ("router_address", "cache_index_address", "tls_cert_file", "tls_key_file", "tls_ca_file")
"""Settings that follow from joining."""


@dataclass(frozen=True, slots=True)
class MachineAssignment:
    """What the machines of one kind run."""

    node_id: str
    """Pattern of their names."""
    role: NodeRole
    settings: Mapping[str, str] = field(default_factory=dict)


def read_assignments(path: Path) -> Sequence[MachineAssignment]:
    """Return the assignments of a file, in their order, or raise ConfigurationError, which names the key."""
    return tuple(_assignment(table, where) for where, table in read_tables(path, str(path)).items())


def assigned(assignments: Sequence[MachineAssignment], node_id: str) -> MachineAssignment:
    """Return the first assignment whose pattern a name matches, or raise NotFoundError."""
    for assignment in assignments:
        if fnmatch.fnmatchcase(node_id, assignment.node_id):
            return assignment
    patterns = ", ".join(repr(assignment.node_id) for assignment in assignments) or "nothing"
    remedy = "--worker-node-id gives this machine a name that fits"
    raise NotFoundError(
        f"no assignment for node {node_id!r}: the router has some for {patterns}; {remedy}", reason="NO_ASSIGNMENT"
    )


def _assignment(table: Mapping[str, object], where: str) -> MachineAssignment:
    role, node_id = table.get("role"), table.get("node_id", "*")
    if role not in get_args(NodeRole):
        raise ConfigurationError(f"{where}.role: expected one of {', '.join(get_args(NodeRole))}, got {role!r}")
    if not isinstance(node_id, str) or not node_id:
        raise ConfigurationError(f"{where}.node_id: expected a pattern such as mac-*, got {node_id!r}")
    reserved = [key for key in _RESERVED if key in table]
    if reserved:
        raise ConfigurationError(f"{where}.{reserved[0]}: follows from joining")
    settings = {key: value for key, value in table.items() if key not in ("role", "node_id")}
    nested = [key for key, value in settings.items() if not isinstance(value, str | int | float | bool)]
    if nested:
        raise ConfigurationError(f"{where}.{nested[0]}: expected text, a number or true or false")
    return MachineAssignment(
        node_id, cast(NodeRole, role), {key.replace("-", "_"): setting_text(value) for key, value in settings.items()}
    )
