"""The exercises: the same for the same seed, right, and split without overlap."""

import random
import re
from collections.abc import Callable

import pytest

from demo.dialogues import (
    SMALL_TALK,
    Exercise,
    Task,
    arithmetic,
    fact,
    retrieval,
    reversal,
    small_talk,
)
from demo.evaluate import DialogueRow, draw_facts
from demo.vocabulary import END_ID, encode_text, role_id

NUM_DRAWN = 300
COMPUTE: dict[str, Callable[[int, int], int]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
}


def test_the_same_seed_draws_the_same_exercises() -> None:
    """Two generators with one seed agree; another seed differs."""

    def draw(seed: int) -> list[Exercise]:
        rng = random.Random(seed)
        return [arithmetic(rng, Task.ADD) for _ in range(NUM_DRAWN)]

    assert draw(3) == draw(3)
    assert draw(3) != draw(4)


@pytest.mark.parametrize("task", [Task.ADD, Task.SUBTRACT, Task.MULTIPLY])
def test_arithmetic_is_right_and_about_what_was_asked(task: Task) -> None:
    """The answer repeats the question's operands and states the result that Python computes."""
    rng = random.Random(5)
    for _ in range(NUM_DRAWN):
        exercise = arithmetic(rng, task)

        parsed = re.fullmatch(r"(\d+) ([-+*]) (\d+) = (\d+)", exercise.answer)
        assert parsed is not None
        left, symbol, right, result = parsed.groups()
        assert int(result) == COMPUTE[symbol](int(left), int(right))
        assert re.findall(r"\d+", exercise.question) == [left, right]


def test_a_reversed_word_reads_backwards() -> None:
    """The answer's letters, last to first, are a word of the question."""
    rng = random.Random(6)
    for _ in range(NUM_DRAWN):
        exercise = reversal(rng)

        word = "".join(reversed(exercise.answer))
        assert re.search(rf"\b{word}\b", exercise.question)


def test_a_retrieval_asks_for_the_key_and_answers_with_the_fact() -> None:
    """The question names the key but not the value; the answer is the fact as it stands in the context."""
    rng = random.Random(7)
    for _ in range(NUM_DRAWN):
        drawn = fact(rng)
        exercise = retrieval(rng, drawn)

        assert drawn.key in exercise.question
        assert drawn.value not in exercise.question.split()
        assert exercise.answer == f"{drawn.key}: {drawn.value}"


def test_every_small_talk_question_has_one_answer() -> None:
    """No question stands under two answers, and what is drawn is one of the canned answers."""
    questions = [question for several in SMALL_TALK.values() for question in several]

    assert len(set(questions)) == len(questions)
    assert small_talk(random.Random(8)).answer in SMALL_TALK


def test_the_times_table_was_learned_by_heart() -> None:
    """No product of two numbers up to 10 is asked of the model as something that it never saw."""
    rng = random.Random(9)
    drawn = [arithmetic(rng, Task.MULTIPLY) for _ in range(NUM_DRAWN)]

    assert all(max(map(int, re.findall(r"\d+", each.answer)[:2])) > 10 for each in drawn)


def test_exactly_what_the_assistant_says_is_judged() -> None:
    """Targets are an assistant message's tokens and its end marker, and nothing else."""
    row = DialogueRow()
    row.add("user", "hi")
    row.add("assistant", "yes")

    judged = [token for token, is_target in zip(row.tokens, row.is_target, strict=True) if is_target]
    assert judged == [*encode_text("yes"), END_ID]
    assert row.tokens[:5] == [role_id("user"), *encode_text("hi"), END_ID, role_id("assistant")]


def test_facts_of_one_context_have_distinct_keys() -> None:
    """A question has one right answer."""
    facts = draw_facts(random.Random(3), 4000)

    assert len({drawn.key for drawn in facts}) == len(facts)
    assert 4000 <= sum(len(str(drawn)) + 1 for drawn in facts) < 4020


def test_a_task_that_is_not_arithmetic_is_refused() -> None:
    """Asking the arithmetic generator for small talk is an error, not an endless search."""
    with pytest.raises(ValueError, match="small_talk"):
        arithmetic(random.Random(0), Task.SMALL_TALK)
