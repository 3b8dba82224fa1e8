"""Whose rows a packed tensor of queries holds, told by tensors on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from baton.engine.runners.torch.paged.tiles import Tiles
from baton.engine.runners.torch.upload import upload


@dataclass(frozen=True, slots=True)
class PagedQueries:
    """The sequences of packed queries, cut into tiles of consecutive queries.

    Interval table: rows [first_rows[s], first_rows[s + 1]) are the queries of sequence `s`, at positions [ends[s] -
    their number, ends[s]); tile `t` holds `tiles.queries` of them, or what is left, from `tile_first_queries[t]` on.
    All tensors are int32 and lie on the pool's device.
    """

    tables: torch.Tensor
    """Blocks: [num_sequences, max_blocks]."""
    ends: torch.Tensor
    """Position after the last query: [num_sequences]; 0 for a row that only fills up a batch."""
    first_rows: torch.Tensor
    """[num_sequences + 1]."""
    tile_sequences: torch.Tensor
    """[num_tiles]."""
    tile_first_queries: torch.Tensor
    """[num_tiles]."""
    tiles: Tiles
    """Their sizes."""
    max_end: int
    """Highest position in `ends`, or the highest it may become."""

    @property
    def num_tiles(self) -> int:
        """Return the number of tiles."""
        return len(self.tile_sequences)


def pack_queries(
    tables: Sequence[Sequence[int]],
    starts: Sequence[int],
    ends: Sequence[int],
    *,
    tiles: Tiles,
    device: torch.device,
) -> PagedQueries:
    """Return the description of sequences laid end to end.

    Args:
        tables: Blocks of each; cover the positions before its end.
        starts: Position of the first query of each.
        ends: Position after its last query.
        tiles: Into what the queries are cut.
        device: Where the tensors are made.
    """
    counts = [end - start for start, end in zip(starts, ends, strict=True)]
    cut = [(index, first) for index, count in enumerate(counts) for first in range(0, count, tiles.queries)]
    first_rows = [0]
    for count in counts:
        first_rows.append(first_rows[-1] + count)
    widest = max(map(len, tables))
    return PagedQueries(
        tables=upload([[*table, *[0] * (widest - len(table))] for table in tables], device, torch.int32),
        ends=upload(ends, device, torch.int32),
        first_rows=upload(first_rows, device, torch.int32),
        tile_sequences=upload([sequence for sequence, _ in cut], device, torch.int32),
        tile_first_queries=upload([first for _, first in cut], device, torch.int32),
        tiles=tiles,
        max_end=max(ends),
    )
