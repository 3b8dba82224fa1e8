"""A pass, or several in a row: begun on a runner, and what it brings."""

from __future__ import annotations

from typing import NamedTuple

from baton.engine.execution.host_sampling import PassResult, TokenChoice, draws_of, plain_result, sampled_result
from baton.engine.runners.base import Launched, Runner
from baton.engine.scheduling.step import Step


class Pass(NamedTuple):
    """A pass, or several in a row, in flight."""

    step: Step
    launched: Launched | None
    """The runner's side of it; None: no position is computed."""
    choice: TokenChoice

    @property
    def is_plain(self) -> bool:
        """Return whether the runner itself chooses all tokens, so that the next pass need not wait for the host."""
        return self.choice is not TokenChoice.ON_HOST


def launch(runner: Runner, step: Step, choice: TokenChoice, after: Pass | None = None) -> Pass:
    """Begin a pass."""
    if not step.spans:
        return Pass(step, None, TokenChoice.ON_HOST)
    launched = runner.launch(
        step.spans,
        draws=draws_of(step) if choice is TokenChoice.DRAWN else None,
        after=after.launched if after is not None and step.is_following else None,
        num_steps=step.num_passes,
    )
    for copy in step.copies:
        runner.copy_block(copy.source, copy.target)
    return Pass(step, launched, choice)


def collect(computed: Pass) -> PassResult:
    """Wait for a pass, or for the next of several, and return what it brought to sequences that still live.

    The first of several passes fills all blocks that they gave to the prefix cache: those of tokens known before.
    """
    step, launched = computed.step, computed.launched
    if launched is None:
        result = PassResult([], [], [], [])
    elif computed.is_plain:
        result = plain_result(step, launched.tokens(step.num_collected))
    else:
        result = sampled_result(step, launched.logits())
    step.num_collected += 1
    return result
