"""Conversations of people with assistants, as the ShareGPT dump has them: a JSON list of `conversations`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

from bench.workloads.dataset import Session, Turn

CHARACTERS_PER_TOKEN = 4
_USER_ROLES = ("human", "user")
_MIN_OUTPUT_TOKENS = 4
_MAX_OUTPUT_TOKENS = 1024


def about_tokens(text: str) -> int:
    """Return about how many tokens English text has: a quarter of its characters, 1 or more."""
    return max(1, len(text) // CHARACTERS_PER_TOKEN)


def read_sharegpt(
    path: Path, random: Random, count: int, *, max_turns: int = 1, count_tokens: Callable[[str], int] = about_tokens
) -> list[Session]:
    """Return `count` conversations drawn without repetition (all, where there are fewer).

    A turn asks what the person asked, for as many tokens as the recorded answer has (4 to 1024).

    The file is a JSON list of objects with `conversations`: messages with `from` and `value`. At most `max_turns`
    questions of a conversation are asked.

    Raises:
        ValueError: If the file holds no question with an answer.
    """
    conversations = json.loads(path.read_text(encoding="utf-8"))
    random.shuffle(conversations)
    sessions: list[Session] = []
    for conversation in conversations:
        if len(sessions) == count:
            break
        turns = _turns(conversation["conversations"], max_turns, count_tokens)
        if turns:
            sessions.append(Session(turns))
    if not sessions:
        raise ValueError(f"{path.name} holds no question with an answer")
    return sessions


def _turns(messages: Sequence[dict[str, str]], max_turns: int, count_tokens: Callable[[str], int]) -> tuple[Turn, ...]:
    turns = []
    for question, answer in pairwise(messages):
        if question["from"] in _USER_ROLES and answer["from"] not in _USER_ROLES and question["value"]:
            output_tokens = min(_MAX_OUTPUT_TOKENS, max(_MIN_OUTPUT_TOKENS, count_tokens(answer["value"])))
            turns.append(Turn(question["value"], output_tokens))
    return tuple(turns[:max_turns])
