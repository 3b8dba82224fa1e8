"""Fixtures of the attacks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from grpc import _channel
from grpc.aio import _channel as aio_channel

from attacks.http.door import HttpDoor, open_gateway
from attacks.victims import INTERNAL, IS_FORMER, TREE
from text.tokenizer_folders import byte_level, save

if TREE:
    os.environ["PYTHONPATH"] = f"{TREE}/services:{TREE}"  # of the processes that are started from here on


@pytest.fixture(autouse=True, scope="session")
def calls_by_former_names() -> Iterator[None]:
    """Have stubs call internal methods by the names that they have in the commit that is attacked."""

    def renamed(make: Callable[..., Any]) -> Callable[..., Any]:
        def make_renamed(channel: object, method: str, *arguments: Any, **options: Any) -> Any:
            return make(channel, method.replace("/baton.internal.v1.", f"/{INTERNAL}."), *arguments, **options)

        return make_renamed

    with pytest.MonkeyPatch.context() as patch:
        for kind in (_channel.Channel, aio_channel.Channel) if IS_FORMER else ():
            for name in ("unary_unary", "unary_stream", "stream_unary", "stream_stream"):
                patch.setattr(kind, name, renamed(getattr(kind, name)))
        yield


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a byte-level tokenizer."""
    return save(byte_level(), tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def gateway(model_dir: Path, tmp_path: Path) -> Iterator[HttpDoor]:
    """Run a gateway with API keys; its router is away."""
    with open_gateway(model_dir, tmp_path) as door:
        yield door
