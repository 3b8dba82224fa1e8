"""The torch runner generates what transformers generates, however the work is cut into passes and blocks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest

from baton.engine.runners.base import NOT_FINITE, Span
from baton.engine.runners.torch import TorchRunner, load_torch_runner
from checkpoints import (
    CHECKPOINT_NAMES,
    VOCABULARY_SIZE,
    CheckpointName,
    checkpoint,
    reference_generate,
    reference_logits,
)

BLOCK_TOKENS = 16
NUM_BLOCKS = 192
NUM_TOKENS = 64
PROMPT_LENGTHS = (1, 2, 15, 16, 17, 700)

every_checkpoint = pytest.mark.parametrize("name", CHECKPOINT_NAMES)


@cache
def runner_of(name: CheckpointName) -> TorchRunner:
    """Load a runner once."""
    return load_torch_runner(checkpoint(name), model_id=name, num_blocks=NUM_BLOCKS, block_tokens=BLOCK_TOKENS)


def prompt_of(num_tokens: int) -> list[int]:
    """Return a random prompt, always the same for a length."""
    generator = random.Random(num_tokens)
    return [generator.randrange(3, VOCABULARY_SIZE) for _ in range(num_tokens)]


@dataclass
class Request:
    """A sequence that is generated greedily, `computed` of whose tokens are in its blocks."""

    prompt: list[int]
    block_table: Sequence[int]
    computed: int = 0
    output: list[int] = field(default_factory=list)

    def span(self, num_tokens: int | None = None) -> Span:
        """Return the next `num_tokens` tokens, or all."""
        tokens = self.prompt + self.output
        end = len(tokens) if num_tokens is None else min(self.computed + num_tokens, len(tokens))
        return Span(tokens[self.computed : end], self.computed, self.block_table, needs_logits=end == len(tokens))


def step(runner: TorchRunner, *work: tuple[Request, int | None]) -> None:
    """Advance each request by a number of tokens, or all that it has."""
    spans = [request.span(num_tokens) for request, num_tokens in work]
    chosen = iter(runner.forward(spans).argmax())
    for (request, _), span in zip(work, spans, strict=True):
        request.computed = span.end
        if span.needs_logits:
            request.output.append(next(chosen))
    assert next(chosen, None) is None


def finish(runner: TorchRunner, *requests: Request) -> None:
    """Decode requests together until each has its tokens."""
    while running := [request for request in requests if len(request.output) < NUM_TOKENS]:
        step(runner, *((request, None) for request in running))


def expected(name: CheckpointName, request: Request) -> list[int]:
    """Return what transformers generates."""
    return reference_generate(checkpoint(name), request.prompt, NUM_TOKENS, guess=request.output)


@every_checkpoint
@pytest.mark.parametrize("num_prompt_tokens", PROMPT_LENGTHS)
def test_whole_prompt_then_decode_equals_transformers(name: CheckpointName, num_prompt_tokens: int) -> None:
    """A prompt prefilled in one pass and decoded alone yields transformers' tokens."""
    runner, prompt = runner_of(name), prompt_of(num_prompt_tokens)
    request = Request(prompt, range(NUM_BLOCKS))

    finish(runner, request)

    assert request.output == expected(name, request)
    assert len(set(request.output)) > 20


@every_checkpoint
def test_uneven_chunks_in_scattered_blocks_equal_transformers(name: CheckpointName) -> None:
    """Neither the sizes of prefill chunks nor the places of the blocks change the tokens."""
    runner, prompt = runner_of(name), prompt_of(700)
    request = Request(prompt, random.Random(0).sample(range(NUM_BLOCKS), 48))

    for num_tokens in (1, 15, 16, 17, 100, 3, 333):
        step(runner, (request, num_tokens))
    assert request.output == []
    finish(runner, request)

    assert request.output == expected(name, request)


@every_checkpoint
def test_prefill_chunk_beside_ragged_decodes_equals_transformers(name: CheckpointName) -> None:
    """Requests of all lengths, one of them in the middle of its prefill, share passes without changing each other."""
    runner = runner_of(name)
    blocks = iter(random.Random(1).sample(range(NUM_BLOCKS), NUM_BLOCKS))
    requests = [
        Request(prompt_of(length), [next(blocks) for _ in range((length + NUM_TOKENS) // BLOCK_TOKENS + 1)])
        for length in PROMPT_LENGTHS
    ]
    *short, long = requests

    for request in short:
        step(runner, (request, None))
    while long.computed < 700:
        step(runner, (long, 90), *((request, None) for request in short))
    finish(runner, *requests)

    for request in requests:
        assert request.output[:NUM_TOKENS] == expected(name, request)


@every_checkpoint
def test_shared_prefix_blocks_serve_two_sequences(name: CheckpointName) -> None:
    """A second sequence that starts from the first one's blocks yields transformers' tokens, and so does the first."""
    runner, prompt = runner_of(name), prompt_of(700)
    first = Request(prompt, range(50))
    other_prompt = prompt[:160] + prompt_of(17)
    second = Request(other_prompt, [*range(10), *range(60, 70)], computed=160)

    step(runner, (first, None))
    finish(runner, first, second)

    assert first.output == expected(name, first)
    assert second.output == expected(name, second)


@every_checkpoint
def test_teacher_forced_logits_are_close_to_transformers(name: CheckpointName) -> None:
    """Fed the same tokens, the logits differ from transformers' by rounding only."""
    runner, token_ids = runner_of(name), prompt_of(200)
    request = Request(token_ids, range(NUM_BLOCKS))

    rows = [runner.forward([request.span(100)]).rows()]
    request.computed = 100
    for position in range(100, 200):
        span = Span(token_ids[position : position + 1], position, range(NUM_BLOCKS), needs_logits=True)
        rows.append(runner.forward([span]).rows())
    actual = np.concatenate(rows)

    reference = reference_logits(checkpoint(name), token_ids)[100:].numpy()
    assert actual.shape == reference.shape
    assert np.abs(actual - reference).max() <= 1e-4 * np.abs(reference).max()


def test_bfloat16_agrees_with_float32_on_most_tokens() -> None:
    """In bfloat16 the runner works, and its best token is mostly float32's."""
    name: CheckpointName = "llama"
    runner = load_torch_runner(checkpoint(name), model_id=name, dtype="bfloat16", num_blocks=NUM_BLOCKS)
    token_ids = prompt_of(64)

    spans = [
        Span(token_ids[: end + 1], 0, range(5 * end, 5 * end + 5), needs_logits=True)
        for end in range(len(token_ids) // 2)
    ]
    chosen = runner.forward(spans).argmax()

    reference = reference_logits(checkpoint(name), token_ids)[: len(spans)].argmax(dim=-1).tolist()
    assert sum(a == b for a, b in zip(chosen, reference, strict=True)) >= 0.8 * len(spans)


def test_argmax_takes_the_smallest_of_equals() -> None:
    """Equal logits are decided by the smaller id, and rows are read-only."""
    import torch

    from baton.engine.runners.torch.ops.choose import choose_ops
    from baton.engine.runners.torch.runner import TorchLogits

    ops = choose_ops(torch.device("cpu"), torch.float32)
    logits = TorchLogits(torch.tensor([[0.0, 2.0, 1.0, 2.0], [5.0, 5.0, 5.0, 5.0]]), ops)

    assert logits.argmax() == [1, 0]
    assert not logits.rows().flags.writeable


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rows_without_a_finite_highest_logit_have_no_best_token(dtype: str) -> None:
    """NaN and infinity are seen on the device; a token that is merely excluded harms nobody."""
    import torch

    from baton.engine.runners.torch.ops.choose import choose_ops
    from baton.engine.runners.torch.runner import TorchLogits

    nan, inf = float("nan"), float("inf")
    values = [[0.0, nan, 1.0], [2.0, -inf, 1.0], [0.0, inf, 1.0], [-inf, -inf, -inf], [1.0, 3.0, 2.0]]
    number_format = getattr(torch, dtype)
    ops = choose_ops(torch.device("cpu"), number_format)
    logits = TorchLogits(torch.tensor(values, dtype=number_format), ops)

    assert logits.argmax() == [NOT_FINITE, 0, NOT_FINITE, NOT_FINITE, 1]
    assert logits.rows([4, 1]).tolist() == [values[4], values[1]]
