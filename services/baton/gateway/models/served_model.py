"""A model as requests need it: what its decode nodes say of it, and what turns text into its tokens and back."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from baton.internal.v1.node_pb2 import NodeDescription
from baton.kv.hashing import Adapter, adapted_revision
from baton.text.detokenizer import Detokenizers
from baton.text.output_format import AUTO, ModelOutputFormat, detect_output_format
from baton.text.tokenizer import Tokenizer, load_tokenizer

log = logging.getLogger(__name__)


class ModelText(NamedTuple):
    """What turns text into a model's tokens, and its tokens into answers."""

    tokenizer: Tokenizer
    model_format: ModelOutputFormat
    detokenizers: Detokenizers


def open_text(folder: Path, name: str, *, tool_format: str = AUTO, reasoning_format: str = AUTO) -> ModelText:
    """Load what a folder has of text, and log its formats; raise ConfigurationError if one is unreadable or unknown."""
    tokenizer = load_tokenizer(folder)
    found = detect_output_format(tokenizer.template, tool_format=tool_format, reasoning_format=reasoning_format)
    formats = found.tool_format or "none", found.reasoning_format or "none"
    log.info("answer_formats model=%s tool_calls=%s reasoning=%s", name, *formats)
    return ModelText(tokenizer, ModelOutputFormat(tokenizer, found), Detokenizers(tokenizer))


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as its decode nodes describe it."""

    name: str
    text: ModelText
    revision_digest: str
    """Of configuration and weights, those of the adapter included."""
    block_tokens: int
    max_context_tokens: int
    """Longest sequence, prompt and output together."""
    vocabulary_size: int
    """Tokens that there are: rows of the output projection, or the tokenizer's where no node says."""
    eos_token_ids: frozenset[int]
    context_bound: str = ""
    """Why the longest sequence is shorter than the model's own, in words; empty: it is not."""
    adapter: Adapter | None = None
    """What is computed besides the model; None: nothing."""


def describe(name: str, nodes: Sequence[NodeDescription], text: ModelText) -> ServedModel:
    """Return a model as the first of its decode nodes, 1 or more, describes it."""
    first = first_of(nodes)
    roomiest = max(nodes, key=lambda node: node.model_shape.max_context_token_count)
    return ServedModel(
        name=name,
        text=text,
        revision_digest=first.kv_layout.model_revision_digest,
        block_tokens=max(1, first.block_token_count),
        max_context_tokens=roomiest.model_shape.max_context_token_count,
        context_bound=_context_bound(roomiest),
        vocabulary_size=first.model_shape.vocabulary_size or text.tokenizer.vocabulary_size,
        eos_token_ids=frozenset(first.eos_token_ids),
    )


def with_adapters(model: ServedModel, nodes: Sequence[NodeDescription]) -> Mapping[str, ServedModel]:
    """Return a model with each adapter of its nodes, by name: the first node's where digests differ."""
    adapters: dict[str, Adapter] = {}
    for node in sorted(nodes, key=lambda node: node.node_id):
        for adapter in node.adapters:
            known = adapters.setdefault(adapter.name, Adapter(adapter.name, adapter.digest))
            if known.digest != adapter.digest:
                log.warning("adapter_differs adapter=%s node=%s digest=%s", known, node.node_id, adapter.digest)
    return {
        each.name: replace(model, revision_digest=adapted_revision(model.revision_digest, each.digest), adapter=each)
        for each in adapters.values()
    }


def first_of(nodes: Sequence[NodeDescription]) -> NodeDescription:
    """Return the node that speaks for all, of 1 or more."""
    return min(nodes, key=lambda node: node.node_id)


def _context_bound(node: NodeDescription) -> str:
    """Return why a node takes no sequences as long as the model does; nothing where it does."""
    num_tokens = node.model_shape.max_context_token_count
    if node.model_context_token_count <= num_tokens:
        return ""
    cause = f" ({node.block_count_cause})" if node.block_count_cause else ""
    return (
        f"The KV pool of node {node.node_id} holds {num_tokens} tokens{cause}, fewer than the "
        f"{node.model_context_token_count} that the model takes; a larger --num-blocks there raises it."
    )
