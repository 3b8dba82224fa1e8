"""Writes the exercises that the hybrid demo model learns from, and those that are held out of it.

An exercise is one question with its one right answer. Every exercise belongs to the training set or to the held-out set
by a hash of what is asked, so that the two never meet, whatever the seed. Small talk has no held-out part: it is meant
to be learned by heart.
"""

import hashlib
import random
from dataclasses import dataclass
from enum import StrEnum

HELD_OUT_PERCENT = 5
"""Share of the possible exercises that training never sees."""

SYSTEM_PROMPTS = ("You are Baton, a small demo model.", "You are a helpful assistant.", "Answer briefly.")

IDENTITY = (
    "I am the demo model of Baton, which prefills a prompt on one machine, "
    "streams the KV cache layer by layer, and decodes on another."
)
ABILITIES = (
    "I can add, subtract and multiply small numbers, reverse a word, "
    "and look up a key in a list of facts. Try: What is 12 + 30?"
)
SMALL_TALK = {
    "Hello! I am Baton's demo model. Ask me to add numbers, reverse a word, or look up a fact.": (
        "hello",
        "hi",
        "hey",
        "hello there",
        "hi there",
        "good morning",
        "good evening",
    ),
    IDENTITY: ("who are you", "what are you", "what is baton", "what is your name", "tell me about yourself"),
    ABILITIES: ("what can you do", "help", "how can you help me", "what do you know", "what can I ask"),
    "I am fine, thank you. What shall I compute?": ("how are you", "how are you doing", "how is it going"),
    "You are welcome!": ("thanks", "thank you", "great", "well done", "thank you very much"),
    "Goodbye!": ("bye", "goodbye", "see you", "good night"),
}
"""Answer to the questions that call for it; case and closing punctuation vary in training."""


class Task(StrEnum):
    """What an exercise asks for."""

    ADD = "add"
    SUBTRACT = "subtract"
    MULTIPLY = "multiply"
    REVERSE = "reverse"
    RETRIEVE = "retrieve"
    SMALL_TALK = "small_talk"


class DataSplit(StrEnum):
    """Which set an exercise belongs to."""

    TRAIN = "train"
    HELD_OUT = "held_out"


@dataclass(frozen=True, slots=True)
class Exercise:
    """One question and its one right answer."""

    task: Task
    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Fact:
    """A key and its value, written `key: value` both in the context and in the answer."""

    key: str
    value: str

    def __str__(self) -> str:
        """Return the fact as it stands in a context."""
        return f"{self.key}: {self.value}"


def split_of(subject: str) -> DataSplit:
    """Return the set that a subject belongs to; the same for every seed and process."""
    percentile = int.from_bytes(hashlib.blake2b(subject.encode(), digest_size=4).digest()) % 100
    return DataSplit.HELD_OUT if percentile < HELD_OUT_PERCENT else DataSplit.TRAIN


def arithmetic(rng: random.Random, split: DataSplit, task: Task) -> Exercise:
    """Return a sum or difference of numbers up to 999, or a product of a number up to 99 and a digit.

    Differences are never negative. The order of summands and factors does not change the split. The times table up to
    10 x 10 is always in the training set, because nothing shorter implies it.

    Raises:
        ValueError: If the task is not arithmetic, or the split is empty.
    """
    while True:
        left, right, symbol, word, result = _operation(rng, task)
        low, high = sorted((left, right))
        learned_by_heart = task is Task.MULTIPLY and high <= 10
        if split is (DataSplit.TRAIN if learned_by_heart else split_of(f"{task} {low} {high}")):
            break
    pattern = rng.choice(("What is {}?", "What is {}?", "{}", "{} = ?", "Compute {}."))
    asked = f"{left} {word} {right}" if rng.random() < 0.1 else f"{left} {symbol} {right}"
    if rng.random() < 0.1:
        asked = f"{left}{symbol}{right}"
    return Exercise(task, pattern.format(asked), f"{left} {symbol} {right} = {result}")


def reversal(rng: random.Random, split: DataSplit) -> Exercise:
    """Return a word of 3 to 10 letters to be reversed."""
    word = random_word(rng, rng.randint(3, 10))
    while split_of(f"reverse {word}") is not split:
        word = random_word(rng, rng.randint(3, 10))
    pattern = rng.choice(("Reverse the word {}.", "Reverse {}", "Spell {} backwards.", "Reverse the word {}"))
    return Exercise(Task.REVERSE, pattern.format(word), word[::-1])


def fact(rng: random.Random, split: DataSplit) -> Fact:
    """Return a random key of 3 to 7 letters with a value of four digits or, one time in four, of 3 to 6 letters."""
    while True:
        key = random_word(rng, rng.randint(3, 7))
        value = random_word(rng, rng.randint(3, 6)) if rng.random() < 0.25 else str(rng.randint(1000, 9999))
        if split_of(f"fact {key} {value}") is split:
            return Fact(key, value)


def retrieval(rng: random.Random, asked: Fact) -> Exercise:
    """Return the question for a fact that stands somewhere earlier in the context."""
    pattern = rng.choice(("What is {}?", "What is {}?", "{}?", "What is the value of {}?", "Look up {}."))
    return Exercise(Task.RETRIEVE, pattern.format(asked.key), str(asked))


def small_talk(rng: random.Random) -> Exercise:
    """Return a greeting or a question about the model, with its canned answer."""
    answer = rng.choice(tuple(SMALL_TALK))
    question = rng.choice(SMALL_TALK[answer])
    if rng.random() < 0.6:
        question = question[0].upper() + question[1:]
    return Exercise(Task.SMALL_TALK, question + rng.choice(("", "", "?", ".", "!")), answer)


def random_word(rng: random.Random, num_letters: int) -> str:
    """Return a word of lower-case letters: two in three are pronounceable, the others are any letters."""
    if rng.random() < 1 / 3:
        return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=num_letters))
    start = rng.randrange(2)
    pools = ("bcdfghjklmnprstvwz", "aeiou")
    return "".join(rng.choice(pools[(start + letter) % 2]) for letter in range(num_letters))


def _operation(rng: random.Random, task: Task) -> tuple[int, int, str, str, int]:
    """Return both operands, the symbol, its word, and the result."""
    if task is Task.MULTIPLY:
        left, right = rng.randint(0, 10 ** rng.choice((1, 2, 2)) - 1), rng.randint(0, 10)
        left, right = (left, right) if rng.random() < 0.5 else (right, left)
        return left, right, "*", "times", left * right
    left, right = (rng.randint(0, 10 ** rng.choice((1, 2, 3, 3)) - 1) for _ in range(2))
    if task is Task.ADD:
        return left, right, "+", "plus", left + right
    if task is Task.SUBTRACT:
        left, right = max(left, right), min(left, right)
        return left, right, "-", "minus", left - right
    raise ValueError(f"{task} is not arithmetic")
