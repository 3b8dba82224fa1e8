"""Structured outputs on a tiny model: its tokenizer, compiled constraints, the text of tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from baton.engine.constraints.compilation import ConstraintCompiler
from baton.engine.constraints.constraint import Constraint
from baton.engine.request import StructuredOutput
from baton.text.tokenizer import Tokenizer, load_tokenizer
from checkpoints import VOCABULARY_SIZE, checkpoint

EOS = 2
"""The model's only end token."""


@cache
def folder() -> Path:
    """Return the model's folder."""
    return checkpoint("llama")


@cache
def tokenizer() -> Tokenizer:
    """Return the model's tokenizer."""
    return load_tokenizer(folder())


@cache
def compiler() -> ConstraintCompiler:
    """Return a compiler for the model."""
    return ConstraintCompiler(tokenizer().serialized, vocabulary_size=VOCABULARY_SIZE, eos_token_ids=[EOS])


def compiled(structured_output: StructuredOutput, output_token_ids: Sequence[int] = ()) -> Constraint:
    """Return a constraint at the place that an output has come to."""
    constraint = asyncio.run(compiler().constraint(structured_output, output_token_ids))
    assert constraint is not None
    return constraint


def text_of(token_ids: Sequence[int]) -> str:
    """Return the text of an output, its end token left out."""
    return tokenizer().decode([token_id for token_id in token_ids if token_id != EOS])
