"""The public protos as buf sees them: nothing to mend, and what breaks clients is refused (`make clients`)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.environments import installed, missing_program
from tests.clients.plan import FOLDER, ROOT, Client

_BUF = Client(
    name="buf",
    title="buf",
    runtime="node",
    script=FOLDER / "test_buf.py",
    packages=["@bufbuild/buf@1.75.0"],
    cluster="",
    features=[],
)


@pytest.fixture(scope="module")
def outcome() -> Path:
    """Return the program."""
    if absent := missing_program(_BUF):
        pytest.skip(absent)
    return installed(_BUF) / "node_modules" / ".bin" / "buf"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of the protos, to be changed."""
    shutil.copytree(ROOT / "protos", tmp_path / "protos")
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    return tmp_path


def _buf(program: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run((program, *arguments), cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_buf_finds_nothing_to_mend(outcome: Path) -> None:
    """By its rules STANDARD and COMMENTS, which buf.yaml names."""
    done = _buf(outcome, ROOT, "lint")

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_buf_refuses_a_field_that_is_gone(outcome: Path, copy: Path) -> None:
    """As the test of the published lines does, which needs no buf."""
    proto = copy / "protos/baton/v1/generation.proto"
    proto.write_text(proto.read_text().replace("  int32 completion_token_count = 3;\n", "", 1))
    done = _buf(outcome, copy, "breaking", "--against", str(ROOT))

    assert done.returncode != 0
    assert 'field "3" with name "completion_token_count" on message "Usage" was deleted' in done.stdout
