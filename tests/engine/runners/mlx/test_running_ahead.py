"""Passes of the mlx runner that are launched before their tokens are read, and the rows that they decode in."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest

from baton.engine.runners.base import NOT_FINITE, UNKNOWN_TOKEN, LayerKv, Span
from baton.engine.runners.drawing import Draws, draw_tokens
from checkpoints import CheckpointName, checkpoint, reference_generate

mx = pytest.importorskip("mlx.core")

from baton.engine.runners.mlx import MlxRunner, load_mlx_runner  # noqa: E402 (needs mlx)
from baton.engine.runners.mlx.forward_pass.launched import MlxPass  # noqa: E402

NUM_STEPS = 40
TABLES = ([3, 4, 5, 6, 7], [20, 11, 31, 1, 2], [9, 8, 12, 13, 14])


def prompts() -> list[list[int]]:
    """Return prompts of uneven lengths."""
    random = Random(5)
    return [[random.randrange(3, 512) for _ in range(length)] for length in (9, 30, 17)]


def new_runner(*, num_blocks: int = 64, block_tokens: int = 16) -> MlxRunner:
    """Return a float32 runner of its own."""
    return load_mlx_runner(checkpoint("llama"), model_id="tiny", num_blocks=num_blocks, block_tokens=block_tokens)


def test_tokens_fed_before_they_are_known_are_those_of_the_reference() -> None:
    """Forty steps are launched, each from the unread tokens of the one before, while a sequence joins."""
    runner, given = new_runner(), prompts()
    launches = [runner.launch([Span(prompt, 0, table, True) for prompt, table in zip(given, TABLES, strict=True)][:2])]
    members = [0, 1]
    got: list[list[int]] = [[], [], []]
    for number in range(NUM_STEPS):
        for row, member in enumerate(members):
            got[member].append(launches[-1].tokens()[row]) if number % 7 == 0 else got[member].append(UNKNOWN_TOKEN)
        spans = [
            Span([UNKNOWN_TOKEN], len(given[member]) + len(got[member]) - 1, TABLES[member], True, follows_row=row)
            for row, member in enumerate(members)
        ]
        if number == 11:
            spans, members = [*spans, Span(given[2], 0, TABLES[2], True)], [0, 1, 2]
        launches.append(runner.launch(spans, after=launches[-1]))

    tokens = [launch.tokens() for launch in launches]

    for row, prompt in enumerate(given):
        output = [step[row] for step in tokens[12 if row == 2 else 0 :]]
        assert output == reference_generate(checkpoint("llama"), prompt, len(output), guess=output)
    assert len(tokens) == NUM_STEPS + 1


def test_who_opens_the_block_of_one_that_has_left_keeps_its_own_past() -> None:
    """Two sequences fill a block at once; one leaves, and its block becomes the other's next."""
    runner = new_runner()
    given = [prompt[:9] for prompt in prompts()[:2]]
    tables = ([3], [20])
    got = [
        [token] for token in runner.forward([Span(p, 0, t, True) for p, t in zip(given, tables, strict=True)]).argmax()
    ]
    for _ in range(7):
        spans = [Span(tokens[-1:], 9 + len(tokens) - 1, table, True) for tokens, table in zip(got, tables, strict=True)]
        for tokens, token in zip(got, runner.forward(spans).argmax(), strict=True):
            tokens.append(token)

    for _ in range(5):
        got[1] += runner.forward([Span(got[1][-1:], 9 + len(got[1]) - 1, [20, 3], True)]).argmax()

    assert got[1] == reference_generate(checkpoint("llama"), given[1], 13, guess=got[1])


def test_who_joins_with_a_block_that_this_very_launch_writes_does_not_find_the_past() -> None:
    """Blocks of one token: somebody leaves, their last block is written again, and who joins begins behind it."""
    runner, (departed, prompt, _) = new_runner(num_blocks=1024, block_tokens=1), prompts()
    left, begun, landing = list(range(6)), [20, 21, 22, 23, 24, 5], [20, 21, 22, 23, 24, 5, 30]
    runner.forward([Span(departed[:5], 0, left, False)])
    runner.forward([Span(departed[5:6], 5, left, False)])
    runner.forward([Span(prompt[:5], 0, begun, False)])

    token = runner.forward([Span(prompt[5:6], 5, begun, False), Span(prompt[6:7], 6, landing, True)]).argmax()

    assert token == reference_generate(checkpoint("llama"), prompt[:7], 1)


def test_drawn_tokens_are_those_that_the_host_draws() -> None:
    """By temperature, greedily where it is 0, and none from a row that is not finite."""
    rows = np.random.default_rng(3).standard_normal((40, 700)).astype(np.float32) * 4
    rows[7, 3], rows[8, :600] = np.nan, -np.inf
    draws = Draws(np.tile([0.0, 0.3, 1.0, 1.7], 10), np.random.default_rng(4).random((1, 40)))

    tokens = MlxPass(mx.array(rows), draws).tokens()

    assert tokens == draw_tokens(rows, draws)
    assert tokens[7] == NOT_FINITE


def test_a_nan_in_a_row_does_not_outlive_its_sequence() -> None:
    """A row that held a sequence full of NaN is taken by a shorter one, whose logits are finite and right."""
    runner, given = new_runner(), prompts()
    spoiled = runner.info.layout.layers[0]
    nan = np.full(spoiled.num_token_elements // 2 * 40, np.nan, np.float32).tobytes()
    for layer in range(runner.info.layout.num_layers):
        runner.write_kv(TABLES[1], layer, 0, 40, LayerKv(nan, nan))
    spans = [Span(given[0][:-1], 0, TABLES[0], False)]
    runner.forward(spans)
    assert runner.forward([Span([5], 40, TABLES[1], True)]).argmax() == [NOT_FINITE]

    token = runner.forward([Span(given[0][-1:], len(given[0]) - 1, TABLES[0], True)]).argmax()

    assert token == reference_generate(checkpoint("llama"), given[0], 1)


def poison(runner: MlxRunner, table: Sequence[int]) -> None:
    """Write NaN over all of a table's blocks, as a sequence that overflowed leaves them."""
    for layer, spec in enumerate(runner.info.layout.layers):
        nan = np.full(spec.num_token_elements // 2 * runner.block_tokens * len(table), np.nan, np.float32).tobytes()
        runner.write_kv(table, layer, 0, runner.block_tokens * len(table), LayerKv(nan, nan))


def decode_from_blocks(runner: MlxRunner, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Return what the prompts are continued with where there is no memory for rows."""
    given = prompts()
    monkeypatch.setattr(runner._batches, "_max_row_positions", 0)
    got = [
        [token] for token in runner.forward([Span(p, 0, t, True) for p, t in zip(given, TABLES, strict=True)]).argmax()
    ]
    for _ in range(20):
        spans = [
            Span(tokens[-1:], len(prompt) + len(tokens) - 1, table, True)
            for tokens, prompt, table in zip(got, given, TABLES, strict=True)
        ]
        for tokens, token in zip(got, runner.forward(spans).argmax(), strict=True):
            tokens.append(token)
    return got


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_sequences_without_room_for_rows_decode_from_their_blocks(
    name: CheckpointName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no memory for rows the tokens are the same, also where earlier owners left the blocks full of NaN."""
    runner = load_mlx_runner(checkpoint(name), model_id="tiny", num_blocks=64)
    for table in ([0], *TABLES):
        poison(runner, table)

    got = decode_from_blocks(runner, monkeypatch)

    for prompt, output in zip(prompts(), got, strict=True):
        assert output == reference_generate(checkpoint(name), prompt, 21, guess=output)


def test_a_nan_left_in_quantised_blocks_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block full of NaN has NaN scales; the tokens are those of blocks that nobody had."""
    clean, spoiled = (
        load_mlx_runner(checkpoint("qwen3"), model_id="tiny", num_blocks=64, is_kv_quantized=True) for _ in range(2)
    )
    for table in ([0], *TABLES):
        poison(spoiled, table)

    got = decode_from_blocks(spoiled, monkeypatch)

    assert got == decode_from_blocks(clean, monkeypatch)
