"""The client of `baton chat` against a made-up gateway."""

from __future__ import annotations

import socket
import threading
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
    assert [*list_models(url)] == ["tiny", "failing", "cut"]


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


@pytest.mark.parametrize("write", ["{host}", "http://{host}/", "http://{host}/v1", "{host}/v1/"])
def test_an_address_may_be_as_other_clients_have_it(write: str) -> None:
    """Without the scheme, and with the path that OpenAI's clients have in theirs."""
    with running_gateway() as url:
        assert "tiny" in list_models(write.format(host=url.removeprefix("http://")))


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "http://", "http://127.0.0.1:many", ""])
def test_what_is_no_address_is_refused(url: str) -> None:
    """The flag is named, with what was expected."""
    with pytest.raises(ConfigurationError, match="--url: expected http://host:port"):
        list_models(url)


def test_a_port_that_speaks_no_http_is_told_as_such() -> None:
    """As the gateway's gRPC port does: its bytes are kept from the terminal."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_greet_as_http2, args=(server,))
        thread.start()
        with pytest.raises(UnavailableError, match=r"not in HTTP: is it a gRPC port\?"):
            list_models(f"http://127.0.0.1:{server.getsockname()[1]}")
        thread.join()


def _greet_as_http2(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b"\0\0\x12\4\0\0\0\0\0\0\3\0\0\0\x64" + b"\0" * 9)
