"""What passes take on this node, measured while it serves, and what follows from it for the next pass."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

MIN_PROMPT_TOKENS = 16
"""Positions of prompts that a pass computes at least, however much later the tokens of decoding sequences come."""

_DECAY = 0.95
"""Weight of a measurement after another of its kind."""
_MAX_SURPRISE = 4.0
"""A pass counts as at most this many times what is usual: a pause of the machine says nothing of passes."""
_RIDGE = 1e-6
"""Share of each diagonal element added to it, so that measurements that are all alike still give an answer."""
_FLAT = 1.2
"""Part of the time of reading the weights up to which a pass says nothing of what positions take."""
_REFUTED = 2.0
"""Part of it from which on a pass that was expected to take that, and was as short, refutes what has been learnt."""
HUNG_FACTOR = 4.0
"""A pass that takes so many times what is predicted hangs, if passes of late took what was predicted."""
_LEAST_PASSES = 4
"""Passes of a kind and size after which one is judged: kernels are compiled, and graphs captured, in the first ones."""

_LEAST_SURE_SHARE = 1 / 64
"""Of what a pass is expected to take, where the host always looks late."""


class StepWork(NamedTuple):
    """What a pass computes."""

    num_tokens: int
    num_pairs: float
    """Pairs of a position and one that it attends to."""

    @classmethod
    def of_span(cls, begin: int, end: int) -> StepWork:
        """Return that of the positions [begin, end) of a sequence."""
        return cls(end - begin, (end - begin) * (begin + end) / 2)


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a pass as a linear function of its work, or the least that any takes; no term is negative."""

    fixed_seconds: float
    """Of any pass."""
    token_seconds: float
    """Per position."""
    pair_seconds: float
    """Per pair."""
    least_seconds: float = 0.0
    """Of a pass that computes too little to take longer than reading the weights."""

    def seconds(self, work: StepWork, num_passes: int = 1) -> float:
        """Return what a pass takes, or several take together."""
        computing = self.token_seconds * work.num_tokens + self.pair_seconds * work.num_pairs
        return max(self.fixed_seconds * num_passes + computing, self.least_seconds * num_passes)

    def alone_seconds(self, begin: int, end: int, pass_tokens: int) -> float:
        """Return what the positions [begin, end) of a prompt take as the only ones, in full passes and a last one.

        Where attention makes later passes longer than reading the weights, earlier ones not, the last position may take
        less than none.
        """
        last = end - (end - begin) % pass_tokens
        parts = [(begin, last, (last - begin) // pass_tokens), (last, end, 1)]
        return sum(self.seconds(StepWork.of_span(start, stop), num) for start, stop, num in parts if stop > start)

    def prompt_seconds(self, begin: int, end: int) -> float:
        """Return what it takes to compute the positions [begin, end) of a sequence, beside what passes take anyway."""
        num_tokens, num_pairs = StepWork.of_span(begin, end)
        return self.token_seconds * num_tokens + self.pair_seconds * num_pairs

    def tokens_beside(self, work: StepWork) -> tuple[float, float]:
        """Return the positions that take as long as what a pass does besides, `work` too, and as reading the weights.

        While these are read, positions are computed.
        """
        if not self.token_seconds:
            return math.inf, 0.0
        beside_seconds = max(0.0, self.seconds(work) - self.least_seconds)
        return beside_seconds / self.token_seconds, self.least_seconds / self.token_seconds

    def affordable_tokens(self, work: StepWork, target_seconds: float, context_tokens: int) -> float:
        """Return the positions of a prompt that a pass can take besides, lest it take longer than it should.

        Solves prompt_seconds(context, context + n) = target - seconds(work) for n. `work` is what it computes anyway,
        and `context_tokens` of the prompt are computed already. Returns `MIN_PROMPT_TOKENS` or more; infinity where
        positions cost nothing.
        """
        left_seconds = max(0.0, target_seconds - self.seconds(work))
        linear = self.token_seconds + self.pair_seconds * context_tokens
        root = linear + math.sqrt(linear * linear + 2 * self.pair_seconds * left_seconds)
        return max(MIN_PROMPT_TOKENS, 2 * left_seconds / root) if root else math.inf


class StepCostModel:
    """Learns the cost of passes, by least squares in which old measurements fade; the least that one takes is known.

    Passes with and without prompts fade apart from each other: a long time without prompts does not make forget what
    prompts cost. Steps read KV, which is no measure of prompts: until a pass with prompts takes longer than reading the
    weights, so many positions as a pass holds at most, `pass_tokens`, are taken to be computed meanwhile.
    """

    def __init__(self, least_seconds: float = 0.0, pass_tokens: int = 0) -> None:
        self._least_seconds, self._pass_tokens = least_seconds, pass_tokens
        self._moments: dict[bool, _Moments] = {}
        self._computing = _Moments()  # passes with prompts that take longer than reading the weights
        self._cost: StepCost | None = None
        self._is_stale = False
        self._sure_shares = {False: 1.0, True: 1.0}  # of what passes, without and with prompts, were expected to take
        self._num_passes = Counter[_Size]()

    @property
    def cost(self) -> StepCost | None:
        """Return what passes cost, or None before any was measured."""
        if self._is_stale:
            self._is_stale = False
            steps = [moments for has_prompts, moments in self._moments.items() if not has_prompts]
            if self._pass_tokens and True in self._moments and not self._computing.passes:
                self._cost = StepCost(0.0, self._least_seconds / self._pass_tokens, 0.0, self._least_seconds)
            else:
                self._cost = _fit([*steps, self._computing], self._least_seconds)
        return self._cost

    def note(self, work: StepWork, seconds: float, *, has_prompts: bool, is_late: bool | None = None) -> None:
        """Take in what a pass took; `is_late`: at most, for it was over when the host looked, nobody knows since when.

        `seconds` of 0 or less are no measurement. Without `is_late` nothing is learnt of what passes take at least.
        """
        if seconds <= 0.0:
            return
        if is_late is not None and (expected := self.expected_seconds(work, has_prompts=has_prompts)):
            share, sure_share = min(1.0, seconds / expected), self._sure_shares[has_prompts]
            share = min(share, sure_share) / 2 if is_late else min(share, 2 * sure_share)
            self._sure_shares[has_prompts] = max(_LEAST_SURE_SHARE, share)
        moments = self._moments.setdefault(has_prompts, _Moments())
        usual_seconds = moments.usual_seconds(work)
        moments.surprise = max(1.0, seconds / usual_seconds, 1.0 + _DECAY * (moments.surprise - 1.0))
        seconds = min(seconds, _MAX_SURPRISE * usual_seconds)
        moments.add(work, seconds)
        if has_prompts and seconds > _FLAT * self._least_seconds:
            self._computing.add(work, seconds)
        elif has_prompts and self.cost:
            is_measured = seconds > self._least_seconds / _FLAT  # else the host looked late at the pass before
            if is_measured and self.cost.seconds(work) > _REFUTED * self._least_seconds:
                self._computing = _Moments()  # of pauses, or of the first passes: kernels were compiled in them
        self._num_passes[_size_of(work, has_prompts=has_prompts)] += 1
        self._is_stale = True

    def expected_seconds(self, work: StepWork, *, has_prompts: bool, at_least: bool = False) -> float:
        """Return what a pass takes, no more than others in proportion; 0 where none of its kind has been measured.

        `at_least`: the share of it that such passes took for sure. Who looks at a pass when what is expected of it is
        over would find that right for ever.
        """
        moments = self._moments.get(has_prompts)
        seconds = min(self.cost.seconds(work), moments.usual_seconds(work)) if moments and self.cost else 0.0
        return seconds * self._sure_shares[has_prompts] if at_least else seconds

    def longest_seconds(self, work: StepWork, *, has_prompts: bool) -> float:
        """Return the time after which a pass is taken for hung, whatever the machine does besides.

        That is `HUNG_FACTOR` times what is predicted, times how much longer than usual a pass took of late; infinity
        where too few of its kind and size, by powers of two, have been measured to predict it.
        """
        cost = self.cost
        if cost is None or self._num_passes[_size_of(work, has_prompts=has_prompts)] < _LEAST_PASSES:
            return math.inf
        moments = self._moments[has_prompts]
        return HUNG_FACTOR * moments.surprise * max(cost.seconds(work), moments.usual_seconds(work))


_Size = tuple[bool, int, int]


def _size_of(work: StepWork, *, has_prompts: bool) -> _Size:
    return has_prompts, work.num_tokens.bit_length(), int(work.num_pairs).bit_length()


class _Moments:
    """Faded sums over passes: their number, positions, pairs and seconds, and products of these; taken every pass."""

    def __init__(self) -> None:
        self.passes = self.tokens = self.pairs = self.seconds = 0.0
        self.tokens_tokens = self.tokens_pairs = self.pairs_pairs = self.tokens_seconds = self.pairs_seconds = 0.0
        self.surprise = 1.0  # how many times its usual time a pass took of late

    def usual_seconds(self, work: StepWork) -> float:
        """Return the mean time of a pass, more in proportion if this one is larger than the mean."""
        if not self.passes:
            return math.inf
        return self.seconds / self.passes * max(1.0, work.num_tokens * self.passes / self.tokens)

    def add(self, work: StepWork, seconds: float) -> None:
        """Take in a pass."""
        tokens, pairs = work
        self.passes = _DECAY * self.passes + 1.0
        self.tokens = _DECAY * self.tokens + tokens
        self.pairs = _DECAY * self.pairs + pairs
        self.seconds = _DECAY * self.seconds + seconds
        self.tokens_tokens = _DECAY * self.tokens_tokens + tokens * tokens
        self.tokens_pairs = _DECAY * self.tokens_pairs + tokens * pairs
        self.pairs_pairs = _DECAY * self.pairs_pairs + pairs * pairs
        self.tokens_seconds = _DECAY * self.tokens_seconds + tokens * seconds
        self.pairs_seconds = _DECAY * self.pairs_seconds + pairs * seconds

    def matrix(self) -> list[list[float]]:
        """Return the sums of the products of (1, positions, pairs) with each other."""
        return [
            [self.passes, self.tokens, self.pairs],
            [self.tokens, self.tokens_tokens, self.tokens_pairs],
            [self.pairs, self.tokens_pairs, self.pairs_pairs],
        ]

    def vector(self) -> list[float]:
        """Return the sums of the products of (1, positions, pairs) with the seconds."""
        return [self.seconds, self.tokens_seconds, self.pairs_seconds]


def _fit(moments: list[_Moments], least_seconds: float) -> StepCost:
    """Return the cost of least squared error without negative terms: the most negative one is left out till none is."""
    matrices, vectors = [each.matrix() for each in moments], [each.vector() for each in moments]
    matrix = [[sum(each[row][column] for each in matrices) for column in range(3)] for row in range(3)]
    vector = [sum(values) for values in zip(*vectors, strict=True)]
    terms = [row for row in range(3) if matrix[row][row] > 0.0]
    while True:
        values = _solve([[matrix[row][column] for column in terms] for row in terms], [vector[row] for row in terms])
        if not values or min(values) >= 0.0:
            break
        terms.pop(values.index(min(values)))
    found = dict(zip(terms, values, strict=True))
    return StepCost(found.get(0, 0.0), found.get(1, 0.0), found.get(2, 0.0), least_seconds)


def _solve(matrix: list[list[float]], vector: list[float]) -> list[float]:
    """Return the solution of a symmetric positive system, its unknowns scaled to one size."""
    scales = [1 / math.sqrt(matrix[row][row]) for row in range(len(vector))]
    rows = [
        [value * scales[row] * scales[column] + _RIDGE * (row == column) for column, value in enumerate(matrix[row])]
        + [vector[row] * scales[row]]
        for row in range(len(vector))
    ]
    for pivot in range(len(rows)):
        for row in range(pivot + 1, len(rows)):
            factor = rows[row][pivot] / rows[pivot][pivot]
            rows[row] = [value - factor * above for value, above in zip(rows[row], rows[pivot], strict=True)]
    solution = [0.0] * len(rows)
    for row in reversed(range(len(rows))):
        known = sum(rows[row][column] * solution[column] for column in range(row + 1, len(rows)))
        solution[row] = (rows[row][-1] - known) / rows[row][row]
    return [value * scale for value, scale in zip(solution, scales, strict=True)]
