"""How far the KV of a prompt has come, layer by layer: what is kept of a broken stream, and what the next one owes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from baton.kv.layout import KvDtype, KvLayout


@dataclass(frozen=True, slots=True)
class KvProgress:
    """Positions whose KV is there.

    Interval table: layer `l` has [0, next_tokens[l]) and lacks [next_tokens[l], num_tokens).
    """

    next_tokens: tuple[int, ...]
    """First position that each layer lacks."""
    num_tokens: int
    """Positions of the prompt, 1 or more."""

    @classmethod
    def begin(cls, layout: KvLayout, token_begin: int, num_tokens: int) -> Self:
        """Return the progress of a prompt whose positions from `token_begin` are missing in every layer."""
        return cls((token_begin,) * layout.num_layers, num_tokens)

    @property
    def complete_tokens(self) -> int:
        """Return the positions that every layer has."""
        return min(self.next_tokens)

    @property
    def is_complete(self) -> bool:
        """Return whether nothing is missing."""
        return self.complete_tokens == self.num_tokens

    @property
    def is_even(self) -> bool:
        """Return whether all layers have the same positions."""
        return self.complete_tokens == max(self.next_tokens)

    def missing_bytes(self, layout: KvLayout, dtype: KvDtype | None = None) -> int:
        """Return the payload that is missing, in `dtype` (the cache's if None), without scales."""
        num_bytes = (dtype or layout.dtype).num_bytes
        return sum(
            (self.num_tokens - next_token) * spec.num_token_elements * num_bytes
            for spec, next_token in zip(layout.layers, self.next_tokens, strict=True)
        )
