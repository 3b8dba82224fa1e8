"""Draws whole HTTP requests that no generator of bodies reaches: headers, encodings, nesting, numbers, cut streams."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from system.plan import MODEL_NAME
from system.rest import CHAT, COMPLETION

_RESPONSE = {"model": MODEL_NAME, "input": "What is 12 + 30?", "max_output_tokens": 4}
_BODIES: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("/v1/chat/completions", CHAT),
    ("/v1/completions", COMPLETION),
    ("/v1/messages", CHAT),
    ("/v1/messages/count_tokens", {name: CHAT[name] for name in ("model", "messages")}),
    ("/v1/responses", _RESPONSE),
    ("/tokenize", {"prompt": "abc"}),
    ("/bench/chat/completions", CHAT),
)
_PATHS = ("/", "/v1", "/v1/embeddings", "/v1/models", "/v1/models/%00", "/v1/models/é%ff", "/docs", "/ping", "/metrics")
_HEADERS: Mapping[str, Sequence[str]] = {
    "accept": ("*/*", "text/html", "application/openmetrics-text", "q=;;,", "text/event-stream"),
    "accept-encoding": ("gzip", "br", "gzip;q=0", "*;q=nan", ""),
    "anthropic-version": ("2023-06-01", "", "x"),
    "anthropic-beta": ("a,b,c", "é"),
    "authorization": ("Bearer", "Bearer ", "Basic x", "Bearer " + "a" * 4000, "é"),
    "content-encoding": ("identity", "br", "gzip, gzip", "x", "", "deflate"),
    "content-type": ("application/json;", "application/json; charset=utf-16", "text/plain", "application/json,x", ""),
    "cookie": ("a=b", "a" * 4000),
    "expect": ("100-continue", "x"),
    "if-none-match": ("*",),
    "origin": ("null", "http://x", "é"),
    "range": ("bytes=0-0",),
    "te": ("trailers",),
    "traceparent": (
        "00-" + "0" * 32 + "-" + "0" * 16 + "-01",
        "x",
        "ff" * 40,
        "00-" + "a" * 32 + "-" + "b" * 16 + "-01",
    ),
    "tracestate": ("a=b," * 100,),
    "x-api-key": ("", "x"),
    "x-baton-tpot-seconds": ("0", "-1", "nan", "1e999", "0.1", "x", "1_0"),
    "x-baton-ttft-seconds": ("inf", "-0", "\u0661", "0.5", " ", "1e-400"),
    "x-forwarded-for": ("::1, 1.2.3.4",),
    "x-request-id": ("a", "", "a b", "é", "%0a", "a" * 97),
    "x-\x7f": ("x",),
    "x-long": ("x" * 8000,),
}
_NUMBERS = (
    "1e309",
    "-1e309",
    "1e-400",
    "9" * 400,
    "-" + "9" * 400,
    "1e999999999",
    "0." + "0" * 400 + "1",
    "-0",
    "1E+2",
)
_NUMBERS_OF_SIZE = ("2147483648", "-2147483649", "9223372036854775808", "18446744073709551616", "4503599627370497.5")
_NUMBER_FIELDS = (
    *("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "n", "logprobs", "top_logprobs", "priority"),
    *("min_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty", "prompt_logprobs", "length_penalty"),
    *("max_output_tokens", "max_completion_tokens", "best_of"),
)
_NESTED_FIELDS = (
    *("metadata", "messages", "prompt", "input", "stop", "logit_bias", "chat_template_kwargs", "nonsense"),
    *("response_format", "tools", "structured_outputs", "guided_json", "system", "output_config", "text"),
)


@dataclass(frozen=True)
class WireRequest:
    """A request as bytes, and what the client does after it."""

    method: str
    path: str
    """Without the query."""
    data: bytes
    is_cut: bool = False
    """Whether the client goes without reading the answer."""
    num_answer_bytes: int = 0
    """With `is_cut`: bytes of the answer that it reads before."""
    is_reset: bool = False
    """With `is_cut`: whether it goes by a reset."""


class WireDrawer:
    """Draws requests; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._kinds: Sequence[Callable[[], WireRequest]] = (
            self._with_headers,
            self._with_headers,
            self._with_encoding,
            self._nested,
            self._with_numbers,
            self._cut_stream,
            self._cut_request,
            self._with_path,
        )

    def draw(self) -> WireRequest:
        """Return the next one."""
        return self._random.choice(self._kinds)()

    def _body(self) -> tuple[str, dict[str, Any]]:
        path, body = self._random.choice(_BODIES)
        return path, dict(body)

    def _request(
        self, path: str, body: bytes, headers: Mapping[str, str] | None = None, method: str = "POST", **what: Any
    ) -> WireRequest:
        fields = {"host": "x", "content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode()
        return WireRequest(method, path.partition("?")[0], head + body, **what)

    def _with_headers(self) -> WireRequest:
        path, body = self._body()
        names = self._random.sample(sorted(_HEADERS), self._random.randint(1, 4))
        return self._request(
            path, json.dumps(body).encode(), {name: self._random.choice(_HEADERS[name]) for name in names}
        )

    def _with_encoding(self) -> WireRequest:
        path, body = self._body()
        text = json.dumps({**body, "user": "é😀", "stop": ["\ud800"]}, ensure_ascii=self._random.random() < 0.5)
        data = self._random.choice(
            (
                text.encode("utf-16", "surrogatepass"),
                text.encode("utf-8", "surrogatepass"),
                b"\xef\xbb\xbf" + json.dumps(body).encode(),
                json.dumps(body).encode() + b"\x00",
                b"\xff" + json.dumps(body).encode(),
                text.encode("latin-1", "replace"),
                b"",
                b" " * 5000,
                b"{" + b'"model":"' + b"\\u0000" * 2000 + b'"}',
            )
        )
        if self._random.random() < 0.5:
            return self._request(path, data)
        packed = gzip.compress(self._random.choice((data, json.dumps(body).encode(), b" " * (1 << 20))))
        kind, packed = self._random.choice(
            (("gzip", packed), ("gzip", packed[: len(packed) // 2]), ("gzip", data), ("deflate", zlib.compress(data)))
        )
        return self._request(path, packed, {"content-encoding": kind})

    def _nested(self) -> WireRequest:
        path, body = self._body()
        depth = self._random.choice((2, 30, 60, 120, 240, 330, 480, 900, 990, 1100, 5000, 100_000))
        opening, inner, closing = self._random.choice(
            (
                ("[", "", "]"),
                ('{"a":', "1", "}"),
                ('{"type":"object","properties":{"a":', "{}", "}}"),
                ('{"type":"array","items":', "true", "}"),
                ('{"anyOf":[', "{}", "]}"),
                ('{"type":"json_schema","json_schema":{"name":"x","strict":true,"schema":', "{}", "}}"),
                ('[{"type":"function","function":{"name":"f","strict":true,"parameters":', "{}", "}}]"),
            )
        )
        value = opening * depth + inner + closing * depth
        if "json_schema" in opening or "function" in opening:
            deep = '{"type":"object","properties":{"a":' * depth + "{}" + "}}" * depth
            value = opening + deep + closing
        name = self._random.choice(_NESTED_FIELDS)
        text = json.dumps({**body, name: "@"}).replace('"@"', value)
        return self._request(path, text.encode())

    def _with_numbers(self) -> WireRequest:
        path, body = self._body()
        names = self._random.sample(_NUMBER_FIELDS, self._random.randint(1, 3))
        text = json.dumps({**body, **{name: f"@{name}" for name in names}})
        for name in names:
            text = text.replace(f'"@{name}"', self._random.choice((*_NUMBERS, *_NUMBERS_OF_SIZE)))
        if self._random.random() < 0.2:
            text = text[:-1] + ', "logit_bias": {"' + self._random.choice(_NUMBERS) + '": 1}}'
        return self._request(path, text.encode())

    def _cut_stream(self) -> WireRequest:
        path, body = self._body()
        limit = {name: 200 for name in body if name.startswith("max")}
        data = json.dumps({**body, **limit, "stream": True}).encode()
        num_bytes = self._random.choice((0, 1, 100, 700, 3000))
        return self._request(path, data, is_cut=True, num_answer_bytes=num_bytes, is_reset=self._random.random() < 0.5)

    def _cut_request(self) -> WireRequest:
        path, body = self._body()
        data = json.dumps(body).encode()
        if self._random.random() < 0.5:
            whole = self._request(path, data).data
        else:
            chunks = b"%x\r\n%b\r\n" % (len(data), data) + self._random.choice((b"", b"0\r\n", b"zz\r\n", b"5\r\nab"))
            head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked"
            whole = head.encode() + b"\r\n\r\n" + chunks
        return WireRequest("POST", path, whole[: self._random.randrange(len(whole))], is_cut=True)

    def _with_path(self) -> WireRequest:
        path, body = self._body()
        method = self._random.choice(("GET", "HEAD", "OPTIONS", "PUT", "DELETE", "POST", "TRACE", "PROPFIND"))
        path = self._random.choice(
            (*_PATHS, path, path + "/", path + "//", "/" + path, "/v1" + path, path + "?a=%ff&&=")
        )
        path = (
            path.encode().decode("latin-1") if self._random.random() < 0.5 else path.encode("ascii", "ignore").decode()
        )
        return self._request(path, json.dumps(body).encode() if method == "POST" else b"", method=method)
