"""Assembles exercises into the rows of tokens that training feeds to the model.

A row is one conversation of many turns, filled up to its length: every turn is a lesson, so no row wastes the context
that it paid for. Only what the assistant says, its end marker included, is learned.
"""

import random
from dataclasses import dataclass, field

from demo.exercises import (
    SYSTEM_PROMPTS,
    DataSplit,
    Exercise,
    Fact,
    Task,
    arithmetic,
    fact,
    retrieval,
    reversal,
    small_talk,
)
from demo.vocabulary import END_ID, PAD_ID, encode_text, role_id

FACT_HEADERS = ("Remember these facts:\n", "Facts:\n", "", "Here is a list.\n")
ACKNOWLEDGEMENT = "Noted."
"""What the assistant says to facts without a question."""


@dataclass(slots=True)
class DialogueRow:
    """A conversation as tokens. Invariant: `tokens` and `is_target` have one entry per position."""

    num_tokens: int
    """Length of the finished row."""
    tokens: list[int] = field(default_factory=list)
    is_target: list[bool] = field(default_factory=list)
    """Whether the token at this position is one that the assistant says."""

    def add(self, role: str, content: str) -> None:
        """Append a message in the chat template's form."""
        body = [*encode_text(content), END_ID]
        self.tokens += [role_id(role), *body]
        self.is_target += [False, *([role == "assistant"] * len(body))]

    def has_room_for(self, *contents: str) -> bool:
        """Return whether messages with these contents still fit."""
        return len(self.tokens) + sum(len(content.encode()) + 2 for content in contents) <= self.num_tokens

    def add_exercise(self, exercise: Exercise, preamble: str = "") -> bool:
        """Append a question and its answer if both fit, and return whether they did."""
        question = preamble + exercise.question
        if not self.has_room_for(question, exercise.answer):
            return False
        self.add("user", question)
        self.add("assistant", exercise.answer)
        return True

    def pad(self) -> None:
        """Fill the rest of the row with padding, which is never learned."""
        missing = self.num_tokens - len(self.tokens)
        self.tokens += [PAD_ID] * missing
        self.is_target += [False] * missing


def short_exercise(rng: random.Random, split: DataSplit) -> Exercise:
    """Return an exercise that needs no context, drawn by how hard each task is to learn."""
    tasks = (Task.ADD, Task.SUBTRACT, Task.MULTIPLY, Task.REVERSE, Task.SMALL_TALK)
    (task,) = rng.choices(tasks, weights=(28, 28, 22, 14, 8))
    if task is Task.REVERSE:
        return reversal(rng, split)
    return small_talk(rng) if task is Task.SMALL_TALK else arithmetic(rng, split, task)


def training_row(rng: random.Random, num_tokens: int, *, retrieval_share: float = 0.5) -> DialogueRow:
    """Return a row of the training set.

    Args:
        rng: The only source of randomness.
        num_tokens: Length of the row, 128 or more.
        retrieval_share: Share of rows that are about facts; the others hold short exercises only.
    """
    row = DialogueRow(num_tokens)
    if rng.random() < 0.15:
        row.add("system", rng.choice(SYSTEM_PROMPTS))
    facts = _add_facts(rng, row) if rng.random() < retrieval_share else []
    while True:
        asks_fact = bool(facts) and rng.random() < 0.9
        exercise = retrieval(rng, rng.choice(facts)) if asks_fact else short_exercise(rng, DataSplit.TRAIN)
        if not row.add_exercise(exercise):
            break
    row.pad()
    return row


def draw_facts(rng: random.Random, split: DataSplit, num_bytes: int) -> list[Fact]:
    """Return facts with distinct keys that take about this many bytes when written one per line, at least one."""
    facts: dict[str, Fact] = {}
    used_bytes = 0
    while used_bytes < num_bytes or not facts:
        drawn = fact(rng, split)
        if drawn.key not in facts:
            facts[drawn.key] = drawn
            used_bytes += len(str(drawn)) + 1
    return list(facts.values())


def as_lines(facts: list[Fact]) -> str:
    """Return the facts one per line, with a line end after each."""
    return "".join(f"{fact}\n" for fact in facts)


def _add_facts(rng: random.Random, row: DialogueRow) -> list[Fact]:
    """Open the conversation with facts that fill a quarter to two thirds of the row, and return them."""
    facts = draw_facts(rng, DataSplit.TRAIN, int(row.num_tokens * rng.uniform(0.25, 0.7)) - 40)
    cut = rng.randint(1, len(facts)) if rng.random() < 0.3 else len(facts)
    first, second = facts[:cut], facts[cut:]
    preamble = rng.choice(FACT_HEADERS) + as_lines(first)
    if second or rng.random() < 0.2:
        row.add("user", preamble.rstrip("\n"))
        row.add("assistant", ACKNOWLEDGEMENT)
        preamble = as_lines(second)
    preamble += "\n" if preamble else ""
    row.add_exercise(retrieval(rng, rng.choice(facts)), preamble)
    return facts
