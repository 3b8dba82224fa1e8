"""The order of a test run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from order import in_order, unit_of


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


def test_files_that_share_a_cluster_are_one_unit(tmp_path: Path) -> None:
    """The others are units by themselves."""
    folder = tmp_path / "system"
    folder.mkdir()
    files = [folder / f"test_{name}.py" for name in "abc"]
    for file, cluster in zip(files, ("demo_cluster", "demo_cluster", "cluster"), strict=True):
        file.write_text(f"def test({cluster}): ...")

    assert [unit_of(file) for file in files] == ["demo_cluster", "demo_cluster", str(files[2])]
