"""Mock runners that fail, for some requests or for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from baton.capacity.hardware import PRESETS
from baton.engine.runners.base import NOT_FINITE, Span
from baton.engine.runners.mock import MockRunner
from baton.engine.runners.mock.passes import MockLogits, MockPass
from engine.rig import INFO, VOCABULARY_SIZE, WaitingMockRunner


class FaultyRunner(WaitingMockRunner):
    """Fails every pass that computes a certain token."""

    bad_token = 1

    def forward(self, spans: Sequence[Span]) -> Any:
        """Compute, or fail."""
        if any(self.bad_token in span.token_ids for span in spans):
            raise RuntimeError("device lost")
        return super().forward(spans)


class LostRunner(WaitingMockRunner):
    """Fails every pass."""

    def forward(self, spans: Sequence[Span]) -> Any:
        """Fail."""
        raise RuntimeError("device lost")


class SpoiledLogits(MockLogits):
    """Logits of which a row is NaN."""

    def __init__(self, tokens: list[int], spoiled: set[int]) -> None:
        super().__init__(tokens, VOCABULARY_SIZE)
        self._spoiled = spoiled

    def argmax(self) -> list[int]:
        """Return the tokens of sound rows."""
        best = super().argmax()
        return [NOT_FINITE if index in self._spoiled else token for index, token in enumerate(best)]


class SpoilingRunner(WaitingMockRunner):
    """A runner that gives no finite logits where a sequence's last token is 9."""

    def forward(self, spans: Sequence[Span]) -> MockLogits:
        """Compute as ever, and spoil rows."""
        tokens = super().forward(spans).argmax()
        asked = [span for span in spans if span.needs_logits]
        return SpoiledLogits(tokens, {row for row, span in enumerate(asked) if span.token_ids[-1] == 9})


class NeverFiniteRunner(WaitingMockRunner):
    """A runner without any finite logits."""

    def forward(self, spans: Sequence[Span]) -> MockLogits:
        """Compute as ever, and spoil all rows."""
        tokens = super().forward(spans).argmax()
        return SpoiledLogits(tokens, set(range(len(tokens))))


class BreakingRunner(MockRunner):
    """A device on which a pass breaks, of which one hears only when its tokens are asked for."""

    bad_token = -2

    def launch(self, *arguments: Any, **options: Any) -> MockPass:
        """Compute; what has fed the bad token cannot say its tokens."""
        launched = super().launch(*arguments, **options)
        spans = arguments[0]
        if any(self.bad_token in span.token_ids for span in spans):
            return Broken(launched)
        return launched


class Broken(MockPass):
    """A pass that broke."""

    def __init__(self, launched: MockPass) -> None:
        vars(self).update(vars(launched))

    def tokens(self, step: int = 0) -> list[int]:
        """Fail."""
        raise RuntimeError("device lost")


class GarblingRunner(BreakingRunner):
    """One on which the pass that breaks leaves garbage in the blocks that it was to fill."""

    on_break: Callable[[], None]
    has_broken = False

    def launch(self, *arguments: Any, **options: Any) -> MockPass:
        """Compute, or leave garbage and tell, once, that what comes from here on finds it."""
        launched = super().launch(*arguments, **options)
        if isinstance(launched, Broken):
            for span in arguments[0]:
                blocks = span.block_table[span.start // self.block_tokens :]
                self._states[blocks] = 7
                self._sums[blocks] = 7 * self.info.layout.num_layers
            if not self.has_broken:
                self.has_broken = True
                self.on_break()
        return launched


def still(runner: type[MockRunner]) -> MockRunner:
    """Return a runner whose clock stands still."""
    return runner(INFO, PRESETS["h200"], num_blocks=64, block_tokens=4, clock=lambda: 1.0, sleep=lambda _seconds: None)
