"""Reads a Dockerfile: its stages, and what each of their instructions says."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_OPTION = re.compile(r"--([a-z-]+)=(\S+)\s+")


class DockerfileError(ValueError):
    """A Dockerfile says what this reader does not know."""


class Instruction(NamedTuple):
    """One instruction."""

    word: str
    """In capitals, e.g. RUN."""
    arguments: str
    """What follows, continued lines joined, options included."""

    @property
    def options(self) -> Mapping[str, str]:
        """Return what stands before the arguments, e.g. {"from": "build"}."""
        return dict(self._split()[0])

    @property
    def operands(self) -> str:
        """Return the arguments without options."""
        return self._split()[1]

    def words(self) -> list[str]:
        """Return the operands one by one: of a JSON array, or as a shell would split them."""
        operands = self.operands
        return [str(word) for word in json.loads(operands)] if operands[:1] == "[" else shlex.split(operands)

    def pairs(self) -> Mapping[str, str]:
        """Return NAME=VALUE operands, as ENV and LABEL have them."""
        pairs = [word.partition("=") for word in self.words()]
        if wrong := [name for name, equals, _ in pairs if not equals]:
            raise DockerfileError(f"{self.word} {wrong[0]}: expected NAME=VALUE")
        return {name: value for name, _, value in pairs}

    def _split(self) -> tuple[list[tuple[str, str]], str]:
        rest, options = self.arguments, []
        while match := _OPTION.match(rest):
            options.append((match[1], match[2]))
            rest = rest[match.end() :]
        return options, rest


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage."""

    name: str
    """After AS."""
    base: str
    """Another stage's name, or an image, variables put in."""
    instructions: list[Instruction] = field(default_factory=list)
    """What follows FROM, in order."""


def read_stages(path: Path, arguments: Mapping[str, str] | None = None) -> Sequence[Stage]:
    """Return the stages of a Dockerfile in their order.

    Args:
        path: The file.
        arguments: Values of ARG instructions ahead of the first stage, instead of their defaults.

    Raises:
        DockerfileError: If an instruction stands where none can, or a stage has no name.
    """
    stages: list[Stage] = []
    outer: dict[str, str] = {}
    for instruction in read_instructions(path.read_text("utf-8")):
        if instruction.word == "FROM":
            base, _, name = instruction.arguments.partition(" AS ")
            if not name:
                raise DockerfileError(f"FROM {base}: expected a name, FROM {base} AS NAME")
            stages.append(Stage(name.strip(), expand(base, outer)))
        elif stages:
            stages[-1].instructions.append(instruction)
        elif instruction.word == "ARG":
            outer |= argument_of(instruction, arguments or {})
        else:
            raise DockerfileError(f"{instruction.word}: stands ahead of the first FROM")
    return stages


def read_instructions(text: str) -> Iterator[Instruction]:
    """Yield the instructions of a Dockerfile, without comments."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        word, _, arguments = line.strip().partition(" ")
        yield Instruction(word, arguments.strip())


def argument_of(instruction: Instruction, given: Mapping[str, str]) -> Mapping[str, str]:
    """Return an ARG's name and its value, the given one or the default."""
    name, _, default = instruction.arguments.partition("=")
    return {name: given.get(name, default.strip("\"'"))}


def ancestry(stages: Sequence[Stage], name: str) -> list[Stage]:
    """Return a stage and those on which it stands, itself first."""
    by_name = {stage.name: stage for stage in stages}
    found: list[Stage] = []
    while name in by_name:
        found.append(by_name[name])
        name = by_name[name].base
    return found


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Return a text with $NAME and ${NAME} replaced; unknown names become empty, as builders do."""
    return _VARIABLE.sub(lambda match: variables.get(match[1] or match[2], ""), text)
