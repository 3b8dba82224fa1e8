"""The client of `baton chat` against a made-up gateway."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from baton.cli.cluster.gateway_client import ChatMessage, list_models, stream_chat
from baton.errors import ConfigurationError, UnavailableError
from cli.gateway import running_gateway


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Return the address of a running gateway."""
    with running_gateway() as address:
        yield address


def _ask(url: str, model: str) -> str:
    pieces = stream_chat(url, model, [ChatMessage("user", "hi")], max_tokens=4, temperature=0)
    return "".join(piece.text for piece in pieces)


def test_text_usage_and_placement_arrive(url: str) -> None:
    """Every event becomes a piece."""
    pieces = list(stream_chat(url, "tiny", [ChatMessage("user", "hi")], max_tokens=4, temperature=0))

    assert [piece.text for piece in pieces] == ["", "HI", ""]
    assert pieces[-1].usage == {"completion_tokens": 1}
    assert pieces[-1].placement == {"decode_node": "d"}


def test_models_are_listed(url: str) -> None:
    """By name."""
    assert list_models(url) == ["tiny"]


@pytest.mark.parametrize(
    ("model", "message"),
    [("unknown", "HTTP 404: no model unknown"), ("failing", "node died"), ("cut", r"without \[DONE\]")],
)
def test_a_failure_is_an_error_with_its_cause(url: str, model: str, message: str) -> None:
    """A refusal, an error event and a stream that ends early are told apart."""
    with pytest.raises(UnavailableError, match=message):
        _ask(url, model)


def test_a_gateway_that_is_not_there_is_named() -> None:
    """With the hint that it may not run."""
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1: .*baton up"):
        list_models("http://127.0.0.1:1")


def test_an_address_without_scheme_is_refused() -> None:
    """`--url` is named."""
    with pytest.raises(ConfigurationError, match="--url"):
        list_models("127.0.0.1:8000")
