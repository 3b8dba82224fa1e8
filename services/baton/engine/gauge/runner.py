"""A runner that notes how much of the engine thread's time is its own."""

from __future__ import annotations

import time
from collections.abc import Sequence

from baton.engine.runners.base import Launched, LayerKv, Logits, Runner, Span
from baton.engine.runners.drawing import Draws


class GaugedRunner(Runner):
    """Hands everything on to another runner, which outlives the engines that close this one.

    Attributes:
        cpu_seconds: Of the calling thread in the other runner.
    """

    def __init__(self, runner: Runner) -> None:
        self.info = runner.info
        self.block_tokens = runner.block_tokens
        self.num_blocks = runner.num_blocks
        self.runs_ahead = runner.runs_ahead
        self.max_launch_steps = runner.max_launch_steps
        self.cpu_seconds = 0.0
        self._runner = runner

    def forward(self, spans: Sequence[Span]) -> Logits:
        """Compute a pass."""
        return self._runner.forward(spans)

    def launch(
        self,
        spans: Sequence[Span],
        *,
        draws: Draws | None = None,
        after: Launched | None = None,
        num_steps: int = 1,
    ) -> Launched:
        """Begin a pass."""
        started = time.thread_time()
        inner = after.inner if isinstance(after, GaugedPass) else after
        launched = self._runner.launch(spans, draws=draws, after=inner, num_steps=num_steps)
        self.cpu_seconds += time.thread_time() - started
        return GaugedPass(launched, self)

    def copy_block(self, source: int, target: int) -> None:
        """Copy a block."""
        self._runner.copy_block(source, target)

    def write_kv(self, block_table: Sequence[int], layer: int, start: int, num_tokens: int, kv: LayerKv) -> None:
        """Write K and V."""
        self._runner.write_kv(block_table, layer, start, num_tokens, kv)

    def read_kv(self, block_table: Sequence[int], layer: int, start: int, num_tokens: int) -> LayerKv:
        """Return K and V."""
        return self._runner.read_kv(block_table, layer, start, num_tokens)

    def close(self) -> None:
        """Leave the other runner as it is."""


class GaugedPass:
    """A pass under way on the other runner."""

    def __init__(self, inner: Launched, runner: GaugedRunner) -> None:
        self.inner = inner
        self._runner = runner

    def tokens(self, step: int = 0) -> list[int]:
        """Return the tokens of a step."""
        started = time.thread_time()
        tokens = self.inner.tokens(step)
        self._runner.cpu_seconds += time.thread_time() - started
        return tokens

    def logits(self) -> Logits:
        """Return the logits."""
        started = time.thread_time()
        logits = self.inner.logits()
        self._runner.cpu_seconds += time.thread_time() - started
        return logits

    def cut(self, num_steps: int) -> int:
        """Ask for no more than some steps."""
        return self.inner.cut(num_steps)
