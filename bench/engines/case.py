"""What an engine is asked to do, and the line protocol by which a child process is asked. Standard library only."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from typing import NamedTuple

CONTEXT = 512
"""Prompt tokens before the decode steps of a case."""
VOCABULARY_SIZE = 49_152


class Case(NamedTuple):
    """One measurement."""

    name: str
    num_prompts: int
    """Prompts: one after the other where they are measured, together where their decoding is."""
    num_prompt_tokens: int
    num_output_tokens: int
    """Per prompt; 1: only the prompts count."""
    max_rounds: int = 1000
    """Rounds at most."""

    @property
    def is_decoding(self) -> bool:
        """Return whether the tokens after the first of each prompt count, and nothing before them."""
        return self.num_output_tokens > 1

    @property
    def num_counted(self) -> int:
        """Tokens that the CPU time is divided by."""
        per_prompt = self.num_output_tokens - 1 if self.is_decoding else self.num_prompt_tokens
        return self.num_prompts * per_prompt


CASES = (
    Case("p512", 2, 512, 1),
    Case("p4096", 1, 4096, 1, max_rounds=1),
    Case("d1", 1, CONTEXT, 33),
    Case("d8", 8, CONTEXT, 17),
    Case("d32", 32, CONTEXT, 9),
)


def prompts_of(case: Case, seed: int) -> list[list[int]]:
    """Return random prompts: of decoding the same for every seed, as caches may hold them; else those of the seed."""
    draws = random.Random(f"{case.name}/{0 if case.is_decoding else seed}")
    return [
        [draws.randrange(10, VOCABULARY_SIZE) for _ in range(case.num_prompt_tokens)] for _ in range(case.num_prompts)
    ]


def serve(measure: Callable[[Case, int], float]) -> None:
    """Answer the lines of standard input, `{"case": name, "seed": n}`, by `{"cpu_seconds": x}`, until it ends.

    Args:
        measure: Returns the CPU seconds that the counted tokens of a case took.
    """
    cases = {case.name: case for case in CASES}
    print(json.dumps({"is_ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps({"cpu_seconds": measure(cases[asked["case"]], asked["seed"])}), flush=True)
