"""The conversations of `bench.prefix.__main__`."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from bench.prefix.conversations import (
    MAX_CONTEXT_TOKENS,
    Population,
    at_rate,
    read_mooncake_requests,
    read_sharegpt_conversations,
    requests_of,
    split,
)
from bench.prefix.static_trie import shared_length


def test_the_seed_decides_the_conversations() -> None:
    """Another part of the population has others, of the same applications."""
    conversations = Population(1).draw("served", 40)
    others = Population(1).draw("train", 40)

    assert conversations == Population(1).draw("served", 40)
    assert conversations != Population(2).draw("served", 40)
    assert max(shared_length(conversations[0].tokens, other.tokens) for other in [*others, *conversations[1:]]) > 20
    assert all(len(conversation.tokens) <= MAX_CONTEXT_TOKENS for conversation in conversations)


def test_a_turn_begins_with_all_that_was_said_before() -> None:
    """Questions and answers; requests come in order of arrival."""
    conversation = next(found for found in Population(3).draw("served", 50) if len(found.turns) == 4)
    requests = requests_of([conversation], seed=1)

    arrivals = [request.arrival_seconds for request in requests]
    assert arrivals == sorted(arrivals)
    for before, after in pairwise(requests):
        assert after.prompt[: len(before.prompt) + len(before.output)] == before.prompt + before.output
    assert requests[-1].prompt + requests[-1].output == conversation.tokens


def test_a_load_is_moved_to_a_rate() -> None:
    """From its first arrival, at 0, to its last, in the same order and proportion."""
    requests = requests_of(Population(1).draw("served", 30), seed=1)

    moved = at_rate(requests, 4.0)

    assert moved[0].arrival_seconds == 0.0
    assert moved[-1].arrival_seconds == pytest.approx(len(requests) / 4.0)
    assert [request.prompt for request in moved] == [request.prompt for request in requests]


def test_equal_beginnings_of_sharegpt_are_equal_tokens(tmp_path: Path) -> None:
    """Four characters are a token, whatever the script."""
    texts = ("same begin, one end", "same begin, 别的结尾")
    entries = [{"conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": "yes"}]} for text in texts]
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps(entries))

    first, second = read_sharegpt_conversations(path)

    assert shared_length(first.tokens, second.tokens) == len("same begin, ") // 4
    with pytest.raises(ValueError, match="the file has 2"):
        split(iter([first, second]), 2, 1)


def test_equal_blocks_of_mooncake_are_equal_tokens(tmp_path: Path) -> None:
    """Answers are everybody's own."""
    rows = [{"timestamp": 1000 * index, "input_length": 1024, "output_length": 40, "hash_ids": [7, index]}
            for index in range(2)]  # fmt: skip
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    first, second = read_mooncake_requests(path, seed=1, count=2, length_factor=0.5)

    assert shared_length(first.prompt, second.prompt) == 256
    assert (len(first.prompt), len(first.output), second.arrival_seconds) == (512, 20, 1.0)
    assert first.output != second.output
