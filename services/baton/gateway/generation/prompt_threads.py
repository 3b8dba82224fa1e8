"""Threads that work on prompts: short ones never wait for long ones, which have threads of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from baton.gateway.generation.requests import ChatPrompt, Prompt, TextPrompt
from baton.gateway.memory import LONG_CHARACTERS

ResultT = TypeVar("ResultT")


class PromptThreads:
    """Runs work on prompts; `close` ends the threads.

    Args:
        num_threads: Of short prompts; long ones have half as many more, at least one.
    """

    def __init__(self, num_threads: int) -> None:
        self._short = ThreadPoolExecutor(num_threads, thread_name_prefix="tokenizer")
        self._long = ThreadPoolExecutor(max(1, num_threads // 2), thread_name_prefix="long-tokenizer")

    async def run(self, prompt: Prompt, work: Callable[[], ResultT]) -> ResultT:
        """Return what work on a prompt gives; never None."""
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(self._short, lambda: None if _is_long(prompt) else work())
        return await loop.run_in_executor(self._long, work) if result is None else result

    def close(self) -> None:
        """End the threads; prompts in work are dropped."""
        for threads in (self._short, self._long):
            threads.shutdown(wait=False, cancel_futures=True)


def num_characters(prompt: ChatPrompt) -> int:
    """Return the size of what is rendered for the model, tools included."""
    texts = (value for turn in prompt.messages for value in turn.values())
    num_characters = sum(len(text) for text in texts if isinstance(text, str))
    return num_characters + sum(len(str(tool.parameters)) for tool in prompt.tools)


def _is_long(prompt: Prompt) -> bool:
    if isinstance(prompt, ChatPrompt):
        return num_characters(prompt) > LONG_CHARACTERS
    return len(prompt.text if isinstance(prompt, TextPrompt) else prompt.token_ids) > LONG_CHARACTERS
