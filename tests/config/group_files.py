"""Files of control groups, as the kernel shows them."""

from __future__ import annotations

from pathlib import Path


def write(path: Path, text: str) -> Path:
    """Write a file and the folders to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
