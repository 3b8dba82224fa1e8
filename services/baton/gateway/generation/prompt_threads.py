"""Threads that work on prompts: short ones never wait for long ones, which have threads of their own.

A tenant has as many prompts of one model in the threads' queues at once as they and its weight are: its others wait for
these. So where several tenants wait, or several models are asked, each gets its share, and one alone keeps all threads
busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from baton.gateway.access.api_keys import ApiKey
from baton.gateway.generation.requests import ChatPrompt, Prompt, TextPrompt
from baton.gateway.memory import LONG_CHARACTERS

ResultT = TypeVar("ResultT")


class PromptThreads:
    """Runs work on prompts, long ones in half as many threads more, at least one; `close` ends the threads."""

    def __init__(self, num_threads: int) -> None:
        self._short = ThreadPoolExecutor(num_threads, thread_name_prefix="tokenizer")
        self._long = ThreadPoolExecutor(max(1, num_threads // 2), thread_name_prefix="long-tokenizer")
        self._num_threads = num_threads
        self._turns: dict[_Turn, asyncio.Semaphore] = {}

    async def run(
        self, prompt: Prompt, work: Callable[[], ResultT], key: ApiKey | None = None, model: str = ""
    ) -> ResultT:
        """Return what work on a prompt of a model gives, for the owner of a key; never None."""
        result = await self._run_in(self._short, lambda: None if _is_long(prompt) else work(), key, model)
        return await self._run_in(self._long, work, key, model) if result is None else result

    async def _run_in(
        self, threads: ThreadPoolExecutor, work: Callable[[], ResultT], key: ApiKey | None, model: str
    ) -> ResultT:
        name, weight = (key.name, key.weight) if key else ("", 1)
        turn = _Turn(model, name, weight, threads)
        async with self._turns.setdefault(turn, asyncio.Semaphore(weight * self._num_threads)):
            return await asyncio.get_running_loop().run_in_executor(threads, work)

    def close(self) -> None:
        """End the threads; prompts in work are dropped."""
        for threads in (self._short, self._long):
            threads.shutdown(wait=False, cancel_futures=True)


class _Turn(NamedTuple):
    """Whose prompts take turns with others'."""

    model: str
    tenant: str
    weight: int
    threads: ThreadPoolExecutor


def num_characters(prompt: ChatPrompt) -> int:
    """Return the size of what is rendered for the model, tools included."""
    texts = (value for turn in prompt.messages for value in turn.values())
    num_characters = sum(len(text) for text in texts if isinstance(text, str))
    return num_characters + sum(len(str(tool.parameters)) for tool in prompt.tools)


def _is_long(prompt: Prompt) -> bool:
    if isinstance(prompt, ChatPrompt):
        return num_characters(prompt) > LONG_CHARACTERS
    return len(prompt.text if isinstance(prompt, TextPrompt) else prompt.token_ids) > LONG_CHARACTERS
