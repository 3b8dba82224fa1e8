"""The exercises: the same for the same seed, right, and split without overlap."""

import random
import re
from collections.abc import Callable

import pytest

from baton.demo.dialogues import (
    SMALL_TALK,
    DataSplit,
    Exercise,
    Task,
    arithmetic,
    fact,
    retrieval,
    reversal,
    small_talk,
)
from baton.demo.rows import short_exercise

NUM_DRAWN = 300
COMPUTE: dict[str, Callable[[int, int], int]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
}


@pytest.mark.parametrize("split", DataSplit)
def test_the_same_seed_draws_the_same_exercises(split: DataSplit) -> None:
    """Two generators with one seed agree; another seed differs."""

    def draw(seed: int) -> list[Exercise]:
        rng = random.Random(seed)
        return [short_exercise(rng, split) for _ in range(NUM_DRAWN)]

    assert draw(3) == draw(3)
    assert draw(3) != draw(4)


@pytest.mark.parametrize("task", [Task.ADD, Task.SUBTRACT, Task.MULTIPLY])
@pytest.mark.parametrize("split", DataSplit)
def test_arithmetic_is_right_and_about_what_was_asked(task: Task, split: DataSplit) -> None:
    """The answer repeats the question's operands and states the result that Python computes."""
    rng = random.Random(5)
    for _ in range(NUM_DRAWN):
        exercise = arithmetic(rng, split, task)

        parsed = re.fullmatch(r"(\d+) ([-+*]) (\d+) = (\d+)", exercise.answer)
        assert parsed is not None
        left, symbol, right, result = parsed.groups()
        assert int(result) == COMPUTE[symbol](int(left), int(right))
        assert re.findall(r"\d+", exercise.question) == [left, right]


def test_a_reversed_word_reads_backwards() -> None:
    """The answer's letters, last to first, are a word of the question."""
    rng = random.Random(6)
    for _ in range(NUM_DRAWN):
        exercise = reversal(rng, DataSplit.TRAIN)

        word = "".join(reversed(exercise.answer))
        assert re.search(rf"\b{word}\b", exercise.question)


def test_a_retrieval_asks_for_the_key_and_answers_with_the_fact() -> None:
    """The question names the key but not the value; the answer is the fact as it stands in the context."""
    rng = random.Random(7)
    for _ in range(NUM_DRAWN):
        drawn = fact(rng, DataSplit.HELD_OUT)
        exercise = retrieval(rng, drawn)

        assert drawn.key in exercise.question
        assert drawn.value not in exercise.question.split()
        assert exercise.answer == f"{drawn.key}: {drawn.value}"


def test_every_small_talk_question_has_one_answer() -> None:
    """No question stands under two answers, and what is drawn is one of the canned answers."""
    questions = [question for several in SMALL_TALK.values() for question in several]

    assert len(set(questions)) == len(questions)
    assert small_talk(random.Random(8)).answer in SMALL_TALK


@pytest.mark.parametrize("task", [Task.ADD, Task.SUBTRACT, Task.MULTIPLY])
def test_training_never_sees_held_out_arithmetic(task: Task) -> None:
    """No pair of operands, in either order, is in both splits."""

    def pairs(split: DataSplit) -> set[tuple[str, ...]]:
        rng = random.Random(9)
        drawn = (arithmetic(rng, split, task) for _ in range(3000))
        return {tuple(sorted(re.findall(r"\d+", exercise.answer)[:2])) for exercise in drawn}

    assert pairs(DataSplit.TRAIN).isdisjoint(pairs(DataSplit.HELD_OUT))


def test_training_never_sees_held_out_words_or_facts() -> None:
    """No word to reverse and no fact is in both splits."""

    def drawn(split: DataSplit) -> set[str]:
        rng = random.Random(10)
        return {reversal(rng, split).answer for _ in range(2000)} | {str(fact(rng, split)) for _ in range(2000)}

    assert drawn(DataSplit.TRAIN).isdisjoint(drawn(DataSplit.HELD_OUT))


def test_a_task_that_is_not_arithmetic_is_refused() -> None:
    """Asking the arithmetic generator for small talk is an error, not an endless search."""
    with pytest.raises(ValueError, match="small_talk"):
        arithmetic(random.Random(0), DataSplit.TRAIN, Task.SMALL_TALK)
