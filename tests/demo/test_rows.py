"""Training rows: full length, in the chat template's form, and with the assistant's words as the only targets."""

import random
import re

import pytest

from baton.demo.dialogues import DataSplit
from baton.demo.rows import DialogueRow, draw_facts, training_row
from baton.demo.vocabulary import END_ID, MARKERS, NUM_TOKENS, PAD_ID, encode_text, role_id


@pytest.mark.parametrize("num_tokens", [128, 256, 1024])
def test_a_row_has_its_length_and_only_known_tokens(num_tokens: int) -> None:
    """Rows of one batch must stack, whatever the conversation."""
    rng = random.Random(1)
    for _ in range(50):
        row = training_row(rng, num_tokens)

        assert len(row.tokens) == len(row.is_target) == num_tokens
        assert all(0 <= token < NUM_TOKENS for token in row.tokens)


def test_exactly_what_the_assistant_says_is_learned() -> None:
    """Targets are an assistant message's tokens and its end marker, and nothing else."""
    row = DialogueRow(num_tokens=64)
    row.add("user", "hi")
    row.add("assistant", "yes")
    row.pad()

    learned = [token for token, is_target in zip(row.tokens, row.is_target, strict=True) if is_target]
    assert learned == [*encode_text("yes"), END_ID]
    assert row.tokens[:5] == [role_id("user"), *encode_text("hi"), END_ID, role_id("assistant")]
    assert row.tokens[-1] == PAD_ID


def test_every_fact_asked_for_was_told_before() -> None:
    """In a row about facts, each answered `key: value` line stands in an earlier user message."""
    rng = random.Random(2)
    for _ in range(50):
        text = _as_text(training_row(rng, 512, retrieval_share=1.0))
        answers = list(re.finditer(r"<\|assistant\|>(\w+: \w+)<\|end\|>", text))

        assert answers
        assert all(
            f"{answer[1]}\n" in text[: answer.start()] or f"{answer[1]}<" in text[: answer.start()]
            for answer in answers
        )


def test_facts_of_one_context_have_distinct_keys() -> None:
    """A question has one right answer."""
    facts = draw_facts(random.Random(3), DataSplit.TRAIN, 4000)

    assert len({drawn.key for drawn in facts}) == len(facts)
    assert 4000 <= sum(len(str(drawn)) + 1 for drawn in facts) < 4020


def _as_text(row: DialogueRow) -> str:
    return "".join(MARKERS[token] if token < len(MARKERS) else chr(token - len(MARKERS)) for token in row.tokens)
