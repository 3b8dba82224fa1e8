"""What the benchmark of wire formats prints, writes and draws."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.microbench.wire_quality import draw_wires, needle_table, quality_table
from bench.results_file import write_results


def quality(wire: str, error: float) -> dict[str, Any]:
    """Return what one format lost on one model."""
    return {"wire": wire, "bytes_share": 0.5, "top1_agreement": 0.9, "logit_error": error, "divergence_nats": error**2}


FOUND = {
    "engine": "torch",
    "dtype": "float32",
    "qualities": {"llama": [quality("int8", 0.02), quality("fp8", 0.2)], "demo": [quality("int8", 0.001)]},
    "needles": [
        {"wire": wire, "context_tokens": length, "num_right": 7, "num_asked": 8}
        for length in (128, 256)
        for wire in ("float32", "int8")
    ],
}


def test_tables_give_the_range_over_models_and_the_needles_found() -> None:
    """A single model has no range."""
    stream = io.StringIO()
    console = Console(file=stream, width=200, color_system=None)
    console.print(quality_table(FOUND["qualities"]))  # type: ignore[arg-type]
    console.print(needle_table(FOUND["needles"]))  # type: ignore[arg-type]
    text = stream.getvalue()

    assert "0.001 to 0.02" in text
    assert "0.2 " in text
    assert text.count("7 of 8") == 4


def test_the_document_has_few_lines_and_reads_back(tmp_path: Path) -> None:
    """One per model and per number of needles, as results are kept."""
    write_results(tmp_path / "wires.json", FOUND)

    text = (tmp_path / "wires.json").read_text(encoding="utf-8")
    assert json.loads(text) == FOUND
    assert len(text.splitlines()) == 14


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    """From the same document."""
    draw_wires(FOUND, tmp_path / "wires.png")

    assert (tmp_path / "wires.png").stat().st_size > 10_000
