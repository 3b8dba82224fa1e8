"""GET /v1/models as Anthropic's clients read it: they say so by their header `anthropic-version`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

import msgspec


class AnthropicModel(msgspec.Struct):
    """Anthropic's model object."""

    id: str
    display_name: str
    created_at: str
    """When the gateway started, as RFC 3339 has it."""
    max_input_tokens: int
    """Longest sequence, prompt and output together; 0 while no node has been seen."""
    max_tokens: int
    """The same: any part of it may be output."""
    type: Literal["model"] = "model"
    lifecycle: Literal["active"] = "active"


class AnthropicModelList(msgspec.Struct):
    """Anthropic's list of models, all on one page."""

    data: list[AnthropicModel]
    first_id: str
    last_id: str
    has_more: bool = False


def anthropic_model(name: str, created_seconds: int, max_context_tokens: int) -> AnthropicModel:
    """Return the object of a model."""
    created_at = datetime.fromtimestamp(created_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return AnthropicModel(name, name, created_at, max_context_tokens, max_context_tokens)


def anthropic_models(models: Sequence[AnthropicModel]) -> AnthropicModelList:
    """Return the list of models, 1 or more."""
    return AnthropicModelList(list(models), models[0].id, models[-1].id)
