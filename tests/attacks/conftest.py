"""Fixtures of the attacks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from attacks.http.door import HttpDoor, open_gateway
from text.tokenizer_folders import byte_level, save


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a byte-level tokenizer."""
    return save(byte_level(), tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def gateway(model_dir: Path, tmp_path: Path) -> Iterator[HttpDoor]:
    """Run a gateway with API keys; its router is away."""
    with open_gateway(model_dir, tmp_path) as door:
        yield door
