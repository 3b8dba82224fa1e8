"""A client of the gateway's REST API, as small as `baton chat` needs: models and a streamed chat completion."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from baton.errors import ConfigurationError, UnavailableError

_NO_HTTP = (
    "something answers there, but not in HTTP: is it a gRPC port? `baton up` prints the address of the REST API, by "
    "default http://127.0.0.1:8000; https:// may be needed too"
)
SILENCE_SECONDS = 120.0
"""Longest pause between two pieces of an answer."""

KEY_VARIABLE = "BATON_API_KEY"
"""Environment variable with the API key, where the gateway asks for one."""

Json = Mapping[str, object]


class ChatMessage(NamedTuple):
    """One message of a conversation."""

    role: str
    content: str


class StreamPiece(NamedTuple):
    """One server-sent event of an answer."""

    text: str
    """New text, possibly empty."""
    usage: Json | None = None
    """OpenAI usage object, once."""
    placement: Json | None = None
    """The `baton` object: where it ran, measured; once."""


def list_models(url: str, api_key: str = "") -> Mapping[str, str]:
    """Return the state of each model by name, empty where not told; raise UnavailableError if the gateway refuses."""
    connection, response = _request(url, "GET", "/v1/models", None, api_key)
    try:
        rows = json.loads(response.read()).get("data", [])
        return {str(row["id"]): str(row.get("state", "")) for row in rows}
    finally:
        connection.close()


def stream_chat(
    url: str, model: str, messages: Sequence[ChatMessage], *, max_tokens: int, temperature: float, api_key: str = ""
) -> Iterator[StreamPiece]:
    """Yield the pieces of an answer as they arrive; raise UnavailableError if the gateway refuses or breaks off."""
    body: Json = {
        "model": model,
        "messages": [message._asdict() for message in messages],
        "max_tokens": max_tokens,
        "temperature": temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection, response = _request(url, "POST", "/v1/chat/completions", body, api_key)
    try:
        for line in response:
            if not line.startswith(b"data:"):
                continue
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                return
            yield parse_event(json.loads(data))
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(f"{url}: the answer broke off: {error}") from error
    finally:
        connection.close()
    raise UnavailableError(f"{url}: the answer ended without [DONE]")


def parse_event(event: Json) -> StreamPiece:
    """Return the piece of a chat.completion.chunk; raise UnavailableError if the event is an error object."""
    if event.get("error"):
        raise UnavailableError(_error_message(event))
    choices = cast(Sequence[Mapping[str, Json]], event.get("choices") or ())
    delta = choices[0].get("delta") or {} if choices else {}
    usage, placement = event.get("usage"), event.get("baton")
    return StreamPiece(str(delta.get("content") or ""), cast(Json | None, usage), cast(Json | None, placement))


def _request(
    url: str, method: str, path: str, body: Json | None, api_key: str
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    parts = _address_of(url)
    connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
    connection = connect(parts.hostname or "", parts.port, timeout=SILENCE_SECONDS)
    try:
        payload = None if body is None else json.dumps(body)
        connection.request(method, parts.path.rstrip("/") + path, payload, headers)
        response = connection.getresponse()
    except http.client.BadStatusLine as error:
        connection.close()
        raise UnavailableError(f"{url}: {_NO_HTTP}") from error
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        raise UnavailableError(f"{url}: {error}; is `baton up` running?") from error
    if response.status != http.client.OK:
        text = response.read()
        connection.close()
        hint = f"; put one into {KEY_VARIABLE}" if response.status == http.client.UNAUTHORIZED else ""
        raise UnavailableError(f"{url}: HTTP {response.status}: {_refusal(text)}{hint}")
    return connection, response


def _address_of(url: str) -> urllib.parse.SplitResult:
    """Return the parts of an address as people give it: http:// may be left out, and OpenAI's /v1 be there."""
    parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
    try:
        is_address = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise ConfigurationError(f"--url: expected http://host:port, got {url}")
    return parts._replace(path=parts.path.rstrip("/").removesuffix("/v1"))


def _refusal(text: bytes) -> str:
    try:
        return _error_message(json.loads(text))
    except (ValueError, AttributeError):
        return text.decode("utf-8", "replace")[:500]


def _error_message(event: Json) -> str:
    error = event.get("error")
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
