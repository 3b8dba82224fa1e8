"""What `baton bench prefix` asks: conversations whose prompts share what prompts of people share, answers included."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from pathlib import Path
from random import Random

from bench.workloads.sharegpt import CHARACTERS_PER_TOKEN
from bench.workloads.traces import Scaling, read_mooncake, replay
from bench.workloads.vocabulary import TokenIds

VOCABULARY_SIZE = 32_000
MAX_CONTEXT_TOKENS = 2048
"""No conversation is longer: the context of Llama-65B."""
_NOTHING: tuple[int, ...] = ()
_MEAN_THINK_GAPS = 20.0
"""Mean time from one question of a conversation to the next, in mean gaps between conversations."""


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and the answer that it gets, whoever serves it."""

    arrival_seconds: float
    """In a load of one conversation per second; `at_rate` gives others."""
    prompt: tuple[int, ...]
    """1 token or more; begins with the conversation so far."""
    output: tuple[int, ...]
    """1 token or more."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Questions and answers by turns; the first question begins with the system prompt."""

    turns: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        """Return all of it, as one sequence."""
        return tuple(token for question, answer in self.turns for token in (*question, *answer))


@dataclass(frozen=True, slots=True)
class Population:
    """Whom synthetic conversations come from: applications with a system prompt each, and tasks that recur.

    Popularity of both falls with rank as 1 / rank; lengths are log-normal with these medians.
    """

    seed: int
    num_applications: int = 40
    system_tokens: int = 150
    num_tasks: int = 400
    task_tokens: int = 60
    question_tokens: int = 40
    answer_tokens: int = 120

    def draw(self, part: str, count: int) -> list[Conversation]:
        """Return `count` conversations; the same for the same seed and part."""
        applications = [self._text(f"application {rank}", self.system_tokens) for rank in range(self.num_applications)]
        tasks = [self._text(f"task {rank}", self.task_tokens) for rank in range(self.num_tasks)]
        random = Random(f"{self.seed}/{part}")
        return [self._conversation(random, applications, tasks) for _ in range(count)]

    def _conversation(
        self, random: Random, applications: Sequence[tuple[int, ...]], tasks: Sequence[tuple[int, ...]]
    ) -> Conversation:
        begin = _popular(random, applications) + (_popular(random, tasks) if random.random() < 0.5 else ())
        turns: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        num_left = MAX_CONTEXT_TOKENS
        while not turns or random.random() < 0.6:  # 2.5 turns in the mean
            question = begin + self._draw(random, self.question_tokens)
            answer = self._draw(random, self.answer_tokens)
            num_left -= len(question) + len(answer)
            if num_left < 0:
                break
            turns.append((question, answer))
            begin = ()
        return Conversation(tuple(turns)) if turns else self._conversation(random, applications, tasks)

    def _text(self, name: str, median_tokens: int) -> tuple[int, ...]:
        return self._draw(Random(f"{self.seed}/{name}"), median_tokens)

    def _draw(self, random: Random, median_tokens: int) -> tuple[int, ...]:
        length = max(1, round(random.lognormvariate(math.log(median_tokens), 0.7)))
        return tuple(random.choices(range(VOCABULARY_SIZE), k=length))


def requests_of(conversations: Sequence[Conversation], seed: int) -> list[Request]:
    """Return a request for each turn, by arrival: conversations begin in a Poisson process of one per second."""
    random = Random(f"{seed}/arrivals")
    requests = []
    begins = accumulate(random.expovariate(1.0) for _ in conversations)
    for begin, conversation in zip(begins, conversations, strict=True):
        arrival, history = begin, _NOTHING
        for question, answer in conversation.turns:
            prompt = history + question
            requests.append(Request(arrival, prompt, answer))
            arrival, history = arrival + random.expovariate(1 / _MEAN_THINK_GAPS), prompt + answer
    return sorted(requests, key=lambda request: request.arrival_seconds)


def at_rate(requests: Sequence[Request], requests_per_second: float) -> list[Request]:
    """Return the load with its arrivals moved together or apart: so many requests per second in the mean."""
    begin = requests[0].arrival_seconds
    span_seconds = requests[-1].arrival_seconds - begin
    factor = len(requests) / requests_per_second / span_seconds if span_seconds > 0 else 0.0
    return [replace(request, arrival_seconds=(request.arrival_seconds - begin) * factor) for request in requests]


def read_mooncake_requests(path: Path, seed: int, count: int, length_factor: float) -> list[Request]:
    """Return the first requests of a Mooncake trace, blocks with equal ids equal; answers are of their own.

    Lengths are scaled by `length_factor`; those beyond the context of Llama-65B are left out.
    """
    scaling = Scaling(length_factor, MAX_CONTEXT_TOKENS)
    sessions = replay(read_mooncake(path), TokenIds(0, VOCABULARY_SIZE), seed, count, scaling)
    random = Random(f"{seed}/answers")
    return [
        Request(
            session.arrival_seconds or 0.0,
            tuple(int(token) for token in turn.prompt),
            tuple(random.choices(range(VOCABULARY_SIZE), k=turn.max_tokens)),
        )
        for session in sessions
        for turn in session.turns
    ]


def read_sharegpt_conversations(path: Path) -> Iterator[Conversation]:
    """Yield the conversations of a ShareGPT dump; four characters of text are a token.

    Raises:
        ValueError: If the file is no list of conversations.
    """
    entries = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(entries, list) or not all("conversations" in entry for entry in entries):
        raise ValueError(f"{path.name}: expected a JSON list of objects with `conversations`")
    for entry in entries:
        texts = [message["value"] for message in entry["conversations"] if message["value"]]
        pairs = list(zip(texts[::2], texts[1::2], strict=False))
        turns, num_left = [], MAX_CONTEXT_TOKENS
        for question, answer in pairs:
            turn = (_tokens(question), _tokens(answer))
            num_left -= len(turn[0]) + len(turn[1])
            if num_left < 0:
                break
            turns.append(turn)
        if turns:
            yield Conversation(tuple(turns))


def split(conversations: Iterator[Conversation], num_first: int, num_second: int) -> list[list[Conversation]]:
    """Return the first and the next conversations.

    Raises:
        ValueError: If there are fewer.
    """
    parts = [list(islice(conversations, num_first)), list(islice(conversations, num_second))]
    if len(parts[1]) < num_second:
        found = len(parts[0]) + len(parts[1])
        raise ValueError(f"{num_first} + {num_second} conversations wanted, the file has {found}: use --train, --count")
    return parts


def _popular(random: Random, texts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return random.choices(texts, weights=[1 / rank for rank in range(1, len(texts) + 1)])[0]


def _tokens(text: str) -> tuple[int, ...]:
    """Return four characters at a time as numbers below 2**31, equal for equal text."""
    return tuple(
        int.from_bytes(text[start : start + CHARACTERS_PER_TOKEN].encode("utf-32-le"), "little") % (2**31 - 1)
        for start in range(0, len(text), CHARACTERS_PER_TOKEN)
    )
