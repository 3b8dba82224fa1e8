"""Reads a Dockerfile: its stages, and what each of their instructions says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

_VARIABLE = re.compile(r"\$\{(\w+)\}")


class Instruction(NamedTuple):
    """One instruction."""

    word: str
    """In capitals, e.g. RUN."""
    arguments: str
    """What follows, continued lines joined, options included."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage."""

    name: str
    """After AS."""
    base: str
    """Another stage's name, or an image, defaults of outer arguments put in."""
    instructions: list[Instruction] = field(default_factory=list)
    """What follows FROM, in order."""


def read_stages(path: Path) -> Sequence[Stage]:
    """Return the stages of a Dockerfile in their order."""
    stages: list[Stage] = []
    outer: dict[str, str] = {}
    for instruction in _instructions(path.read_text("utf-8")):
        if instruction.word == "FROM":
            base, _, name = instruction.arguments.partition(" AS ")
            stages.append(Stage(name.strip(), _VARIABLE.sub(lambda match: outer[match[1]], base)))
        elif stages:
            stages[-1].instructions.append(instruction)
        else:
            assert instruction.word == "ARG", instruction
            name, _, default = instruction.arguments.partition("=")
            outer[name] = default
    return stages


def ancestry(stages: Sequence[Stage], name: str) -> list[Stage]:
    """Return a stage and those on which it stands, itself first."""
    by_name = {stage.name: stage for stage in stages}
    found: list[Stage] = []
    while name in by_name:
        found.append(by_name[name])
        name = by_name[name].base
    return found


def _instructions(text: str) -> Iterator[Instruction]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        word, _, arguments = line.strip().partition(" ")
        yield Instruction(word, arguments.strip())
