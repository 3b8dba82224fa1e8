"""Which workers `baton up` starts: two that play any part, a pinned pair, or the `[[node]]` tables of a TOML file."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast, get_args

from baton.capacity.snapshot import NodeRole, can_decode
from baton.config.node_tables import read_tables, setting_text
from baton.config.settings import load_settings
from baton.decode.settings import DecodeSettings
from baton.demo import checkpoint_dir
from baton.errors import ConfigurationError
from baton.node.settings import EngineName, NodeSettings
from baton.prefill.settings import PrefillSettings
from baton.worker.settings import WorkerSettings

RESERVED = ("host", "port", "node_id", "model_dir", "model_name", "router_address", "cache_index_address", "log_level")
"""Settings of workers that `baton up` gives out itself."""
_FLAGS_OF_UP = {"host": "--host", "model_dir": "--model", "model_name": "--model-name", "log_level": "--log-level"}
SETTINGS_CLASSES: Mapping[NodeRole, type[NodeSettings]] = {
    "prefill": PrefillSettings,
    "decode": DecodeSettings,
    "worker": WorkerSettings,
}
"""What workers read."""

MAX_COUNT = 256
"""Most nodes of one table."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """Workers of one kind."""

    role: NodeRole
    engine: EngineName
    count: int = 1
    """How many, 1 to MAX_COUNT."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Further settings of the worker by field name, e.g. {"num_blocks": "512"}."""


def default_topology(prefill: str, decode: str, *, second: EngineName) -> Sequence[NodeSpec]:
    """Return two workers that play any part, or, where either engine is named, one node pinned to each part.

    `prefill`: engine of the node that prefills; empty: torch, as of the first worker. `decode`: engine of the node that
    decodes; empty: `second`. `second`: engine of the second worker. Raises ConfigurationError if a named engine is
    none.
    """
    engines = parse_engine(prefill or "torch", "--prefill"), parse_engine(decode or second, "--decode")
    roles: tuple[NodeRole, NodeRole] = ("prefill", "decode") if prefill or decode else ("worker", "worker")
    return tuple(NodeSpec(role, engine) for role, engine in zip(roles, engines, strict=True))


def second_engine() -> EngineName:
    """Return the engine of which a machine has one beside torch: mlx where it is installed, else torch."""
    return "mlx" if importlib.util.find_spec("mlx_lm") and importlib.util.find_spec("mlx.core") else "torch"


def parse_engine(text: str, key: str) -> EngineName:
    """Return an engine's name; raise ConfigurationError if it is none; the message names the key."""
    if text not in get_args(EngineName):
        raise ConfigurationError(f"{key}: expected one of {', '.join(get_args(EngineName))}, got {text!r}")
    return cast(EngineName, text)


def read_topology(path: Path) -> Sequence[NodeSpec]:
    """Return the nodes of a TOML file.

    ```toml [[node]] role = "prefill"    # or "decode", or "worker", which does both engine = "torch" count = 2
    # default 1 num_blocks = 512    # any further key is a setting of the worker ``` Raises ConfigurationError if the
    file cannot be read or a key is missing, unknown or invalid; the message names it.
    """
    specs = tuple(_read_node(table, where) for where, table in read_tables(path, f"--nodes {path}").items())
    if not any(can_decode(spec.role) for spec in specs):
        raise ConfigurationError(f'--nodes {path}: node: at least one must have role = "decode" or "worker"')
    return specs


def node_ids(specs: Sequence[NodeSpec]) -> Sequence[tuple[str, NodeSpec]]:
    """Return one (node id, spec) per worker: `role-engine`, numbered where there are several of the kind."""
    totals: dict[str, int] = {}
    for spec in specs:
        kind = f"{spec.role}-{spec.engine}"
        totals[kind] = totals.get(kind, 0) + spec.count
    used: dict[str, int] = {}
    ids = []
    for spec in specs:
        kind = f"{spec.role}-{spec.engine}"
        for _ in range(spec.count):
            used[kind] = used.get(kind, 0) + 1
            ids.append((kind if totals[kind] == 1 else f"{kind}-{used[kind]}", spec))
    return tuple(ids)


def _read_node(table: Mapping[str, object], where: str) -> NodeSpec:
    role, engine, count = table.get("role"), table.get("engine"), table.get("count", 1)
    if role not in get_args(NodeRole):
        raise ConfigurationError(f"{where}.role: expected one of {', '.join(get_args(NodeRole))}, got {role!r}")
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_COUNT:
        raise ConfigurationError(f"{where}.count: expected 1 to {MAX_COUNT}, got {count!r}")
    reserved = sorted(set(RESERVED) & set(table))
    if reserved:
        flag = _FLAGS_OF_UP.get(reserved[0])
        raise ConfigurationError(f"{where}.{reserved[0]}: chosen by `baton up`{f'; use its {flag}' if flag else ''}")
    options = {key: setting_text(value) for key, value in table.items() if key not in ("role", "engine", "count")}
    spec = NodeSpec(cast(NodeRole, role), parse_engine(str(engine), f"{where}.engine"), count, options)
    values = {"model_dir": checkpoint_dir(), "engine": spec.engine, **options}  # any model: options are checked here
    load_settings(SETTINGS_CLASSES[spec.role], {}, values, file_name=where)
    return spec
