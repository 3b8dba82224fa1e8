"""How fast prompts were computed whose KV is in a prefix cache since."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

MAX_PROMPTS = 4096
"""Kept; the prompt not used for longest is forgotten first."""


class PromptRates:
    """Remembers tokens per second by prompt. Holds digests, no tokens."""

    def __init__(self) -> None:
        self._rates: OrderedDict[bytes, float] = OrderedDict()

    def store(self, model_revision_digest: str, token_ids: Sequence[int], tokens_per_second: float) -> None:
        """Keep the rate of the run that computed a prompt, in place of an earlier one."""
        key = _key(model_revision_digest, token_ids)
        self._rates[key] = tokens_per_second
        self._rates.move_to_end(key)
        if len(self._rates) > MAX_PROMPTS:
            self._rates.popitem(last=False)

    def find(self, model_revision_digest: str, token_ids: Sequence[int]) -> float | None:
        """Return the rate of the run that computed a prompt; None if it is not known."""
        key = _key(model_revision_digest, token_ids)
        if key in self._rates:
            self._rates.move_to_end(key)
        return self._rates.get(key)


def _key(model_revision_digest: str, token_ids: Sequence[int]) -> bytes:
    digest = blake2b(model_revision_digest.encode(), digest_size=16)
    digest.update(array("i", token_ids).tobytes())
    return digest.digest()
