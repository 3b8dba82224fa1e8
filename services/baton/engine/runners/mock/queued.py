"""A mock device that computes while the host goes on: what it is asked for waits in its queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from baton.engine.runners.base import Launched, LayerKv, Span
from baton.engine.runners.drawing import Draws, draw_tokens
from baton.engine.runners.mock.runner import MockLogits, MockRunner


class MockPass:
    """Passes in a row on a mock device: their tokens are known when their time is over, on the runner's clock.

    `cut` takes steps from the end of the device's queue, as far as they have not begun, and returns how many stay.
    """

    def __init__(
        self,
        tokens: list[list[int]],
        ends: list[float],
        vocabulary_size: int,
        wait_until: Callable[[float], None],
        cut: Callable[[MockPass, int], int],
    ) -> None:
        self.chosen = tokens
        self.ends = ends
        self._vocabulary_size = vocabulary_size
        self._wait_until = wait_until
        self._cut = cut

    def tokens(self, step: int = 0) -> list[int]:
        """Return the tokens of a step when it is over."""
        self._wait_until(self.ends[step])
        return self.chosen[step]

    def logits(self) -> MockLogits:
        """Return the logits of the only step."""
        self._wait_until(self.ends[0])
        return MockLogits(self.chosen[0], self._vocabulary_size)

    def cut(self, num_steps: int) -> int:
        """Drop the steps after some, but for those that have begun."""
        return self._cut(self, num_steps)


class QueuedMockRunner(MockRunner):
    """Takes passes while others compute, never overlapping: `_free_at` is when the queue's last pass or copy ends."""

    runs_ahead = True
    max_launch_steps = 8
    _free_at = 0.0

    def forward(self, spans: Sequence[Span]) -> MockLogits:
        """Compute a pass behind those in the queue."""
        self.sleep_until(self._free_at)
        return super().forward(spans)

    def launch(
        self, spans: Sequence[Span], *, draws: Draws | None = None, after: Launched | None = None, num_steps: int = 1
    ) -> MockPass:
        """Put a pass, or several in a row, into the queue. One that hands layers out is waited for."""
        started = max(self.clock(), self._free_at)
        known = _with_tokens(spans, after)
        if any(span.layer_sink for span in known):
            return self._launched([_chosen(self.forward(known), draws, 0)], [self.clock()])
        tokens, ends = list[list[int]](), list[float]()
        for step in range(num_steps):
            logits = MockLogits(self.compute(known), self.info.vocabulary_size)
            started += self.pass_seconds(known)
            ends.append(started)
            tokens.append(_chosen(logits, draws, step))
            if step < num_steps - 1:
                fed = zip(known, tokens[-1], strict=True)
                known = [span._replace(token_ids=(token,), start=span.start + 1) for span, token in fed]
        self._free_at = started
        return self._launched(tokens, ends)

    def read_kv(self, block_table: Sequence[int], layer: int, start: int, num_tokens: int) -> LayerKv:
        """Make the bytes of the kept states, behind the passes in the queue."""
        self.sleep_until(self._free_at)
        return super().read_kv(block_table, layer, start, num_tokens)

    def write_kv(self, block_table: Sequence[int], layer: int, start: int, num_tokens: int, kv: LayerKv) -> None:
        """Keep the states that the bytes stand for; the device takes the bytes behind the passes in the queue."""
        self.occupy(len(kv.keys) + len(kv.values))
        self.keep(block_table, layer, start, num_tokens, kv)

    def occupy(self, num_bytes: int) -> float:
        """Put the move of bytes to or from the device's memory into the queue; return when it is over."""
        self._free_at = max(self.clock(), self._free_at) + self.move_seconds(num_bytes)
        return self._free_at

    def _launched(self, tokens: list[list[int]], ends: list[float]) -> MockPass:
        return MockPass(tokens, ends, self.info.vocabulary_size, self.sleep_until, self._cut)

    def _cut(self, launched: MockPass, num_steps: int) -> int:
        if launched.ends[-1] != self._free_at:  # another pass is behind it
            return len(launched.ends)
        now = self.clock()
        num_begun = 1 + sum(end <= now for end in launched.ends[:-1])
        num_kept = max(num_steps, num_begun)
        del launched.chosen[num_kept:], launched.ends[num_kept:]
        self._free_at = launched.ends[-1]
        return num_kept


def _with_tokens(spans: Sequence[Span], after: Launched | None) -> Sequence[Span]:
    """Return the spans with the tokens of the pass before, which the device has in its queue."""
    if after is None:
        return spans
    assert isinstance(after, MockPass), "a pass of another runner cannot be followed"
    tokens = after.chosen[-1]
    return [
        span if span.follows_row is None else span._replace(token_ids=(max(tokens[span.follows_row], 0),))
        for span in spans
    ]


def _chosen(logits: MockLogits, draws: Draws | None, step: int) -> list[int]:
    if draws is None or draws.temperatures.max() <= 1.0:  # no draw passes by a logit that is 100 above the others
        return logits.argmax()
    return draw_tokens(logits.rows(), draws, step)
