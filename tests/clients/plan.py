"""The clients of the table, as clients.toml names them."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]

Runtime = Literal["python", "node", "java", "debian", "rust"]
GRPC_CHECKS = (
    "client",
    "models",
    "conversation",
    "text",
    "tokens",
    "stream",
    "usage",
    "logprobs",
    "stop",
    "structured",
    "tools",
    "loop",
    "errors",
    "deadline",
    "cancel",
    "streams",
    "health",
    "reflection",
    "tls_key",
    "keepalive",
    "request_id",
)
"""What every gRPC client is asked: the page's own program, then twenty checks."""


@dataclass(frozen=True, slots=True)
class Client:
    """A line of the table."""

    name: str
    """In the ids of tests."""
    title: str
    """In the table."""
    runtime: Runtime
    """What runs the script."""
    script: Path
    """Takes names of features, and prints a line of JSON for each."""
    packages: Sequence[str]
    """Pinned requirements of the runtime's registry."""
    cluster: str
    """Served meanwhile."""
    features: Sequence[str]
    """Its cells, in the order in which the script runs them."""
    page: Path | None = None
    """Of docs/clients, with the commands that make it; None: a client of the REST APIs."""
    python: str = ""
    """Version of Python that the client needs; empty: that of Baton."""
    limit_seconds: float = 300.0
    """Longest time of all features together."""


class Cell(NamedTuple):
    """A client's feature."""

    client: Client
    feature: str

    def __str__(self) -> str:
        """Return the id of its test."""
        return f"{self.client.name}-{self.feature}"


def all_clients() -> dict[str, Client]:
    """Return every client by name, those of one cluster after each other."""
    document = tomllib.loads((FOLDER / "clients.toml").read_text())
    read = [_read(name, fields) for name, fields in document.items()]
    clusters = list(dict.fromkeys(client.cluster for client in read))
    return {client.name: client for client in sorted(read, key=lambda client: clusters.index(client.cluster))}


def _read(name: str, fields: dict[str, Any]) -> Client:
    paths: dict[str, Any] = {"script": FOLDER / fields["script"]}
    if "page" in fields:
        paths["page"] = ROOT / fields["page"]
    return Client(name, **{"features": GRPC_CHECKS, **fields, **paths})


def all_cells() -> list[Cell]:
    """Return every cell."""
    return [Cell(client, feature) for client in all_clients().values() for feature in client.features]
