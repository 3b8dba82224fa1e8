"""Turns of tenants and models at the tokenizer."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from baton.gateway.access.api_keys import ApiKey
from baton.gateway.generation.preparation import PromptThreads
from baton.gateway.generation.requests import TokenPrompt


@pytest.mark.parametrize("num_tokens", [1, 10**6])
def test_tenants_take_turns_by_weight(num_tokens: int) -> None:
    """A flood that came first does not hold up others, among short prompts and among long ones."""
    threads, has_all, passed = PromptThreads(1), threading.Event(), list[str]()

    def work(name: str) -> bool:
        has_all.wait()
        passed.append(name)
        return True

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            for name, weight, count in (("a", 1, 40), ("b", 2, 8), ("c", 1, 4)):
                for _ in range(count):
                    key = ApiKey(name, is_admin=False, weight=weight)
                    tasks.create_task(threads.run(TokenPrompt(range(num_tokens)), partial(work, name), key))
            await asyncio.sleep(0)
            has_all.set()

    asyncio.run(run())
    threads.close()

    assert len(passed) == 52
    assert max(index for index, name in enumerate(passed) if name in "bc") < 24


def test_a_cold_model_waits_for_one_prompt_of_a_hot_one() -> None:
    """However many of those wait, and whoever asks: the longest wait is the work on one prompt for each thread."""
    threads, has_all, passed = PromptThreads(1), threading.Event(), list[str]()

    def work(model: str) -> bool:
        has_all.wait()
        passed.append(model)
        return True

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            for model, count in (("hot", 100), ("cold", 1)):
                for _ in range(count):
                    tasks.create_task(threads.run(TokenPrompt([1]), partial(work, model), model=model))
            await asyncio.sleep(0)
            has_all.set()

    asyncio.run(run())
    threads.close()

    assert len(passed) == 101
    assert passed.index("cold") <= 1
