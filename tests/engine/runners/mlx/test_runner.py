"""The mlx runner against transformers, on tiny checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from baton.engine.runners.base import NOT_FINITE, Span
from checkpoints import CHECKPOINT_NAMES, CheckpointName, checkpoint, reference_generate, reference_logits

mx = pytest.importorskip("mlx.core")

from baton.engine.runners.mlx import MlxRunner, load_mlx_runner  # noqa: E402 (needs mlx)
from baton.engine.runners.mlx.forward_pass import batches as batches_module  # noqa: E402
from baton.engine.runners.mlx.forward_pass.batches import Passes  # noqa: E402

NUM_BLOCKS = 160
BLOCK_TOKENS = 16
NUM_NEW_TOKENS = 64
PROMPT_LENGTHS = (1, 2, 15, 16, 17, 701)


@cache
def runner_of(name: CheckpointName) -> MlxRunner:
    """Return a float32 runner; blocks are whoever's test runs."""
    return load_mlx_runner(checkpoint(name), model_id="tiny", num_blocks=NUM_BLOCKS)


@pytest.fixture(params=CHECKPOINT_NAMES)
def name(request: pytest.FixtureRequest) -> CheckpointName:
    """Return each checkpoint's name."""
    chosen: CheckpointName = request.param
    return chosen


@dataclass
class Sequence_:  # noqa: N801 (typing's name is taken)
    """A sequence that is generated greedily."""

    prompt: list[int]
    table: list[int]
    generated: list[int] = field(default_factory=list)
    computed: int = 0

    def span(self, end: int, **options: Any) -> Span:
        """Return the span [computed, end) and count it as computed."""
        tokens, start = (self.prompt + self.generated)[self.computed : end], self.computed
        self.computed = end
        return Span(tokens, start, self.table, **{"needs_logits": end >= len(self.prompt)} | options)

    def step(self) -> Span:
        """Return the span of the newest token."""
        return self.span(len(self.prompt) + len(self.generated))


def prompt_of(num_tokens: int, seed: int = 0) -> list[int]:
    """Return a random prompt; after those of the lengths used here no best two tokens are nearly equal."""
    random = Random(1000 * seed + num_tokens)
    return [random.randrange(3, 512) for _ in range(num_tokens)]


def num_blocks_of(num_tokens: int) -> int:
    """Return the blocks that a prompt and its continuation need."""
    return -(-(num_tokens + NUM_NEW_TOKENS) // BLOCK_TOKENS)


def scattered(num_blocks: int, *, seed: int = 0) -> list[int]:
    """Return blocks in no order."""
    return Random(seed).sample(range(NUM_BLOCKS), num_blocks)


def decode(runner: MlxRunner, sequence: Sequence_, num_tokens: int = NUM_NEW_TOKENS) -> list[int]:
    """Generate alone until `num_tokens` exist."""
    while len(sequence.generated) < num_tokens:
        sequence.generated += runner.forward([sequence.step()]).argmax()
    return sequence.generated


@pytest.mark.parametrize("num_tokens", PROMPT_LENGTHS)
def test_greedy_output_equals_transformers(name: CheckpointName, num_tokens: int) -> None:
    """A prompt computed at once and decoded alone over scattered blocks gives the reference's tokens."""
    prompt = prompt_of(num_tokens)
    sequence = Sequence_(prompt, scattered(num_blocks_of(num_tokens)))

    generated = decode(runner_of(name), sequence)

    assert generated == reference_generate(checkpoint(name), prompt, NUM_NEW_TOKENS, guess=generated)


def test_consecutive_blocks_give_the_same_output(name: CheckpointName) -> None:
    """A table of consecutive blocks, which is sliced instead of gathered, changes nothing."""
    prompt = prompt_of(100)
    sequence = Sequence_(prompt, list(range(5, 5 + num_blocks_of(100))))

    generated = decode(runner_of(name), sequence)

    assert generated == reference_generate(checkpoint(name), prompt, NUM_NEW_TOKENS, guess=generated)


def test_uneven_chunks_give_the_same_output(name: CheckpointName) -> None:
    """A prompt computed in chunks that respect no block gives the reference's tokens."""
    prompt = prompt_of(701)
    runner, sequence = runner_of(name), Sequence_(prompt, scattered(num_blocks_of(701)))
    for end in (1, 2, 63, 64, 65, 201, 202, 513):
        assert runner.forward([sequence.span(end)]).argmax() == []

    generated = decode(runner, sequence)

    assert generated == reference_generate(checkpoint(name), prompt, NUM_NEW_TOKENS, guess=generated)


def test_sequences_that_join_and_leave_a_batch_do_not_disturb_each_other(name: CheckpointName) -> None:
    """Sequences of uneven lengths, one joining every third step, each give their solo output."""
    runner, free = runner_of(name), list(scattered(NUM_BLOCKS, seed=3))
    waiting = [
        Sequence_(prompt_of(length, seed=1), [free.pop() for _ in range(num_blocks_of(length))])
        for length in (43, 1, 333, 17, 16)
    ]
    everyone, running = list(waiting), list[Sequence_]()
    for step in range(10 * NUM_NEW_TOKENS):
        running = [sequence for sequence in running if len(sequence.generated) < NUM_NEW_TOKENS]
        spans = [sequence.step() for sequence in running]
        if waiting and step % 3 == 0:
            running.insert(0, waiting.pop())
            spans.insert(0, running[0].step())
        if not running:
            break
        for sequence, token_id in zip(running, runner.forward(spans).argmax(), strict=True):
            sequence.generated.append(token_id)

    for sequence in everyone:
        output = sequence.generated
        assert output == reference_generate(checkpoint(name), sequence.prompt, NUM_NEW_TOKENS, guess=output)


def test_batch_split_over_passes_gives_the_same_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of very uneven lengths that are computed in two passes come back in the order of the spans."""
    runner, free = runner_of("llama"), scattered(NUM_BLOCKS, seed=7)
    sequences = [Sequence_(prompt_of(n, seed=5), [free.pop() for _ in range(num_blocks_of(n))]) for n in (9, 400, 12)]
    for sequence in sequences:
        sequence.generated += runner.forward([sequence.step()]).argmax()
    spans = [sequence.step() for sequence in sequences]
    together = runner.forward(spans).rows()

    monkeypatch.setattr(batches_module, "plan_passes", lambda *arguments, **options: Passes([], [[1], [2, 0]]))

    assert np.abs(runner.forward(spans).rows() - together).max() <= 1e-4 * np.abs(together).max()


def test_sequences_share_the_blocks_of_a_common_prefix(name: CheckpointName) -> None:
    """Two sequences whose tables begin with the same full blocks give their solo outputs, decoded together."""
    runner, free = runner_of(name), scattered(NUM_BLOCKS, seed=4)
    prefix, shared = prompt_of(96), [free.pop() for _ in range(6)]
    runner.forward([Span(prefix, 0, shared, needs_logits=False)])
    pair = [
        Sequence_(prefix + prompt_of(length, seed=2), shared + [free.pop() for _ in range(10)], computed=96)
        for length in (5, 30)
    ]
    for _ in range(NUM_NEW_TOKENS):
        for sequence, token_id in zip(pair, runner.forward([s.step() for s in pair]).argmax(), strict=True):
            sequence.generated.append(token_id)

    for sequence in pair:
        output = sequence.generated
        assert output == reference_generate(checkpoint(name), sequence.prompt, NUM_NEW_TOKENS, guess=output)


def test_logits_equal_transformers(name: CheckpointName) -> None:
    """Logits after the prompt and after fed tokens differ from the reference by rounding only."""
    prompt = prompt_of(200)
    runner, sequence = runner_of(name), Sequence_(prompt, scattered(num_blocks_of(200)))
    expected = reference_logits(checkpoint(name), prompt).numpy()
    ends = [90, *range(91, 201, 10), 200]

    rows = np.concatenate([runner.forward([sequence.span(end, needs_logits=True)]).rows() for end in ends])

    wanted = expected[[end - 1 for end in ends]]
    assert np.abs(rows - wanted).max() <= 1e-4 * np.abs(wanted).max()


def test_logits_come_in_order_of_the_spans_that_asked(name: CheckpointName) -> None:
    """Rows belong to the spans with `needs_logits`, whatever their lengths."""
    runner, free = runner_of(name), scattered(NUM_BLOCKS, seed=5)
    prompts = [prompt_of(length, seed=3) for length in (3, 1, 20, 1, 1)]
    wants = [True, False, True, True, True]
    spans = [
        Span(prompt, 0, [free.pop(), free.pop()], needs_logits=want)
        for prompt, want in zip(prompts, wants, strict=True)
    ]

    rows = runner_of(name).forward(spans).rows()

    asked = [prompt for prompt, want in zip(prompts, wants, strict=True) if want]
    wanted = np.stack([reference_logits(checkpoint(name), prompt)[-1].numpy() for prompt in asked])
    assert rows.shape == (4, runner.info.vocabulary_size)
    assert rows.dtype == np.float32
    assert np.abs(rows - wanted).max() <= 1e-4 * np.abs(wanted).max()


def test_argmax_takes_the_smallest_id_among_equals() -> None:
    """Ties go to the smallest id, as in the other engine."""
    from baton.engine.runners.mlx.forward_pass.launched import MlxLogits

    logits = MlxLogits(mx.array([[0.0, 2.0, 2.0, 1.0] * 50, [3.0, 3.0, 3.0, 3.0] * 50]))

    assert logits.argmax() == [1, 0]


@pytest.fixture(autouse=True)
def _one_torch_thread() -> Iterator[None]:
    """Keep the reference from taking every core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rows_without_a_finite_highest_logit_have_no_best_token(dtype: str) -> None:
    """NaN and infinity are seen on the device; a token that is merely excluded harms nobody."""
    import mlx.core as mx

    from baton.engine.runners.mlx.forward_pass.launched import MlxLogits

    nan, inf = float("nan"), float("inf")
    values = [[0.0, nan, 1.0], [2.0, -inf, 1.0], [0.0, inf, 1.0], [-inf, -inf, -inf], [1.0, 3.0, 2.0]]
    logits = MlxLogits(mx.array(values).astype(getattr(mx, dtype)))

    assert logits.argmax() == [NOT_FINITE, 0, NOT_FINITE, NOT_FINITE, 1]
    assert logits.rows([4, 1]).tolist() == [values[4], values[1]]
