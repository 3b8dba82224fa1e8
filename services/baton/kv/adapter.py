"""Adapters as all nodes name them: a model with one is another model, with other K and V."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter that a node has loaded."""

    name: str
    """Served name; no other adapter of the node, and no model, has it."""
    digest: str
    """Digest of what it computes: 32 lower-case hexadecimal digits. Equal on nodes that work together."""


def adapted_revision(model_revision_digest: str, adapter_digest: str) -> str:
    """Return the revision of a model with an adapter: 32 hexadecimal digits.

    It stands wherever the model's own revision would: in block hashes, so that no prefix of one adapter serves another
    or none, and in layouts, so that nodes whose adapters differ refuse each other's K and V.
    """
    return blake2b(f"{model_revision_digest}+{adapter_digest}".encode(), digest_size=16).hexdigest()
