"""Reading Dockerfiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from images.dockerfile import DockerfileError, Instruction, ancestry, argument_of, expand, read_stages

_TEXT = """# syntax=docker/dockerfile:1
ARG PYTHON=python:3.11.11-slim-bookworm
FROM ${PYTHON} AS base
ENV PATH=/opt/bin:$PATH \\
    HOME=/tmp
# A comment between.
FROM base AS image
RUN --mount=type=cache,target=/cache \\
    pip install . \\
    && true
COPY --from=base /a /b
ENTRYPOINT ["baton", "a b"]
"""


def test_stages_have_bases_and_instructions(tmp_path: Path) -> None:
    """Lines are joined, comments left out, outer arguments put in."""
    stages = read_stages(_written(tmp_path, _TEXT))

    assert [(stage.name, stage.base) for stage in stages] == [
        ("base", "python:3.11.11-slim-bookworm"),
        ("image", "base"),
    ]
    run, copy, entrypoint = stages[1].instructions
    assert stages[0].instructions[0].pairs() == {"PATH": "/opt/bin:$PATH", "HOME": "/tmp"}
    assert (run.options, run.operands) == ({"mount": "type=cache,target=/cache"}, "pip install . && true")
    assert (copy.options, copy.words()) == ({"from": "base"}, ["/a", "/b"])
    assert entrypoint.words() == ["baton", "a b"]
    assert [stage.name for stage in ancestry(stages, "image")] == ["image", "base"]


def test_arguments_are_given_or_have_defaults(tmp_path: Path) -> None:
    """As `--build-arg` gives them."""
    (base, _) = read_stages(_written(tmp_path, _TEXT), {"PYTHON": "python:3.12.1-slim-trixie"})

    assert base.base == "python:3.12.1-slim-trixie"
    assert argument_of(Instruction("ARG", 'INDEX=""'), {}) == {"INDEX": ""}
    assert argument_of(Instruction("ARG", 'INDEX=""'), {"INDEX": "a"}) == {"INDEX": "a"}


def test_variables_are_put_in() -> None:
    """With and without braces; what is unknown is empty."""
    assert expand("$A/${B}/$C", {"A": "1", "B": "2"}) == "1/2/"


@pytest.mark.parametrize("text", ["FROM python\n", "RUN true\n"])
def test_what_the_reader_does_not_know_is_refused(tmp_path: Path, text: str) -> None:
    """A stage without a name, an instruction ahead of all stages."""
    with pytest.raises(DockerfileError):
        read_stages(_written(tmp_path, text))


def test_a_pair_without_a_value_is_refused() -> None:
    """`ENV NAME VALUE`, the old form, would be read wrongly."""
    with pytest.raises(DockerfileError, match="NAME=VALUE"):
        Instruction("ENV", "HOME /tmp").pairs()


def _written(folder: Path, text: str) -> Path:
    path = folder / "Dockerfile"
    path.write_text(text)
    return path
