"""Carries out the stages of a Dockerfile in folders, as a builder would in layers."""

from __future__ import annotations

import fnmatch
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from images.dockerfile import DockerfileError, Instruction, Stage, ancestry, argument_of, expand
from images.root_file_system import Confinement, command_in, copy_tree

Ignore: TypeAlias = Callable[[str, list[str]], set[str]]

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(slots=True)
class Image:
    """What a stage has become."""

    root: Path
    """Folder with its root file system."""
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": _DEFAULT_PATH})
    """By ENV."""
    labels: dict[str, str] = field(default_factory=dict)
    """By LABEL."""
    work_dir: str = "/"
    """By WORKDIR."""
    user: str = ""
    """By USER; empty: root."""
    entrypoint: list[str] = field(default_factory=list)
    """By ENTRYPOINT."""
    shell: list[str] = field(default_factory=lambda: ["/bin/sh", "-c"])
    """By SHELL."""
    arguments: dict[str, str] = field(default_factory=dict)
    """By ARG; of this stage alone."""

    def child(self, root: Path) -> Image:
        """Return an image that begins with what this one is."""
        copy_tree(self.root, root)
        inherited = (dict(self.environment), dict(self.labels), self.work_dir, self.user)
        return Image(root, *inherited, list(self.entrypoint), list(self.shell))


class StageTrial:
    """Builds stages, each once, from a base that stands in for the pinned one.

    Args:
        stages: Of the Dockerfile.
        context: Folder from which COPY takes.
        folder: Where root file systems are made; one per stage.
        base: Root file system that stands in for every image that is no stage.
        environment: Variables that RUN steps have besides those of the image, e.g. where this machine's pip looks.
        binds: Files of this machine that RUN steps see, by their place.
        build_arguments: Values of ARG.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        context: Path,
        folder: Path,
        base: Path,
        environment: Mapping[str, str],
        binds: Mapping[str, Path],
        build_arguments: Mapping[str, str],
    ) -> None:
        self._stages = stages
        self._context = context
        self._folder = folder
        self._base = Image(base)
        self._environment = environment
        self._binds = binds
        self._build_arguments = build_arguments
        self._built: dict[str, Image] = {}

    def build(self, name: str) -> Image:
        """Return a stage's image, after those that it needs.

        Raises:
            DockerfileError: If an instruction is unknown.
            subprocess.CalledProcessError: If a RUN step fails.
        """
        if name not in self._built:
            (stage, *below) = ancestry(self._stages, name)
            parent = self.build(below[0].name) if below else self._base
            image = parent.child(self._fresh(name))
            for instruction in stage.instructions:
                print(f"{name}: {instruction.word} {instruction.arguments[:150]}", flush=True)
                self._carry_out(image, instruction)
            self._built[name] = image
        return self._built[name]

    def _carry_out(self, image: Image, instruction: Instruction) -> None:
        match instruction.word:
            case "ARG":
                image.arguments |= argument_of(instruction, self._build_arguments)
            case "ENV":
                image.environment |= {
                    name: expand(value, image.environment | image.arguments)
                    for name, value in instruction.pairs().items()
                }
            case "LABEL":
                image.labels |= instruction.pairs()
            case "WORKDIR":
                image.work_dir = os.path.join(image.work_dir, instruction.operands)
                (image.root / image.work_dir.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "USER":
                image.user = instruction.operands
            case "SHELL":
                image.shell = instruction.words()
            case "ENTRYPOINT":
                image.entrypoint = instruction.words()
            case "COPY":
                self._copy(image, instruction)
            case "RUN":
                self._run(image, instruction)
            case word:
                raise DockerfileError(f"{word}: the trial does not know this instruction")

    def _run(self, image: Image, instruction: Instruction) -> None:
        binds = dict(self._binds)
        if mount := instruction.options.get("mount"):
            parts = dict(part.split("=", 1) for part in mount.split(","))
            if parts.get("type") != "cache":
                raise DockerfileError(f"RUN --mount={mount}: the trial knows type=cache alone")
            cache = self._folder / "caches" / parts["target"].strip("/").replace("/", "-")
            cache.mkdir(parents=True, exist_ok=True)
            binds[parts["target"]] = cache
        command = command_in(
            image.root, [*image.shell, instruction.operands], Confinement(binds, image.user), work_dir=image.work_dir
        )
        # In a builder an ARG wins over nothing that ENV sets.
        environment = {**self._environment, **image.arguments, **image.environment}
        subprocess.run(command, env=environment, check=True)

    def _copy(self, image: Image, instruction: Instruction) -> None:
        *sources, target = instruction.words()
        into = image.root / os.path.join(image.work_dir, target).lstrip("/")
        origin = instruction.options.get("from")
        ignored = None if origin else _ignored(self._context)
        for source in sources:
            path = (self.build(origin).root if origin else self._context) / source.lstrip("/")
            is_into_folder = target.endswith("/") or len(sources) > 1
            if path.is_dir():
                shutil.copytree(path, into, symlinks=True, dirs_exist_ok=True, ignore=ignored)
            else:
                destination = into / path.name if is_into_folder else into
                destination.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, destination)

    def _fresh(self, name: str) -> Path:
        root = self._folder / name
        shutil.rmtree(root, ignore_errors=True)
        return root


def _ignored(context: Path) -> Ignore:
    """Return what tells `copytree` which entries of a folder the builder would not get."""
    lines = (context / "docker" / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    patterns = [line for line in lines if line.startswith("**/") or line[:1] not in ("", "!", "#", "*")]

    def ignore(folder: str, names: list[str]) -> set[str]:
        below = os.path.relpath(folder, context)
        paths = {name: os.path.normpath(os.path.join("/", below, name)) for name in names}
        wanted = [f"*/{pattern[3:]}" if pattern.startswith("**/") else f"/{pattern}" for pattern in patterns]
        return {name for name, path in paths.items() if any(fnmatch.fnmatch(path, pattern) for pattern in wanted)}

    return ignore
