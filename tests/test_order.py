"""The order of a test run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from order import in_order


@dataclass(frozen=True)
class Item:
    """What the order depends on."""

    path: Path
    fixturenames: tuple[str, ...] = ()


def test_long_files_come_first_and_those_that_share_a_cluster_last() -> None:
    """Whole files move, with all their tests in order."""
    folder = Path("/repository/tests")
    pool = [Item(folder / "kv" / "test_pool.py", (name,)) for name in ("b", "a")]
    shared = [
        Item(folder / "system" / "test_clients.py"),
        Item(folder / "system" / "test_clients.py", ("demo_cluster",)),
    ]
    soak = Item(folder / "system" / "test_soak.py", ("soaked_cluster",))
    families = Item(folder / "exactness" / "test_families.py")
    items: Any = [*shared, families, *pool, soak]

    assert in_order(items) == [families, soak, *pool, *shared]
