"""A made-up gateway with the REST API that `baton chat` uses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from http_double import Answer, Request, serving


@contextmanager
def running_gateway(*, key: str = "") -> Iterator[str]:
    """Serve and yield the address; with a key, to those who have it."""

    def answer(request: Request) -> Answer:
        if key and request.headers.get("Authorization") != f"Bearer {key}":
            return Answer(401, b'{"error": {"message": "no such key"}}')
        if request.method == "GET":
            return Answer(200, b'{"data": [{"id": "tiny"}, {"id": "failing"}, {"id": "cut"}]}')
        return _chat(request.body)

    with serving(answer) as url:
        yield url


def _chat(content: bytes) -> Answer:
    """Answer with events chosen by the model's name, or fail."""
    body = json.loads(content)
    if body["model"] == "unknown":
        return Answer(404, b'{"error": {"message": "no model unknown"}}')
    question = body["messages"][-1]["content"]
    events = [
        {"choices": [{"delta": {"role": "assistant", "content": ""}}], "usage": None},
        {"choices": [{"delta": {"content": question.upper()}}]},
    ]
    if body["model"] == "failing":
        events.append({"error": {"message": "node died"}})
    else:
        events.append({"choices": [], "usage": {"completion_tokens": 1}, "baton": {"decode_node": "d"}})
    lines = [b"data: " + json.dumps(event).encode() for event in events]
    if body["model"] != "cut":
        lines.append(b"data: [DONE]")
    return Answer(200, b"\n\n".join(lines) + b"\n\n")
