"""Whether the runner can choose all tokens of a pass by itself, and what it must know for it."""

from __future__ import annotations

from enum import Enum, auto

import numpy as np

from baton.engine.runners.drawing import Draws
from baton.engine.sampling import uniform
from baton.engine.step import Step


class Choice(Enum):
    """How the tokens of a pass are chosen."""

    GREEDY = auto()
    """The most probable one of each row."""
    DRAWN = auto()
    """By logits, temperatures and random numbers: neither filters nor history, no report."""
    BY_HAND = auto()
    """Row by row, on the host."""


def choice_of(step: Step) -> Choice:
    """Return how the tokens of a planned pass are chosen. Twins may want different tokens of one row."""
    if step.scored or step.has_sinks:
        return Choice.BY_HAND
    is_greedy = True
    for sequence, _ in step.sampled:
        params = sequence.request.params
        if not params.is_plain:
            return Choice.BY_HAND
        if params.min_tokens and sequence.num_output_tokens + sequence.num_ahead < params.min_tokens:
            return Choice.BY_HAND
        is_greedy = is_greedy and params.temperature == 0.0
    if is_greedy:
        return Choice.GREEDY
    return Choice.BY_HAND if step.twins else Choice.DRAWN


def draws_of(step: Step) -> Draws:
    """Return what the rows of a pass, or of several in a row, are drawn with."""
    temperatures = np.zeros(step.num_rows)
    uniforms = np.zeros((step.num_passes, step.num_rows))
    for sequence, row in step.sampled:
        params = sequence.request.params
        if params.temperature:
            temperatures[row] = params.temperature
            position = sequence.num_output_tokens + sequence.num_ahead
            for index in range(step.num_passes):
                uniforms[index, row] = uniform(params.seed, position + index)
    return Draws(temperatures, uniforms)
