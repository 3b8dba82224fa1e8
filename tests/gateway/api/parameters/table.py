"""The table of the REST API: a row is a parameter, a request that uses it, and the effect that must be seen."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from transformers import PreTrainedTokenizerFast

from baton.gateway.server import RunningGateway
from baton.internal.v1 import decode_service_pb2 as decode
from gateway.bodies import SMALLEST
from gateway.fake_cluster import FakeCluster
from gateway.rest import Reply, ask
from gateway.tool_models import answer_with

TEXT = "hello world"
"""What the model answers, where a row does not say otherwise; it takes NUM_TOKENS tokens."""


class Seen(NamedTuple):
    """What a request led to."""

    reply: Reply
    requests: Sequence[decode.DecodeServiceGenerateRequest]
    """Generations that nodes were asked for."""
    model_dir: Path

    @property
    def events(self) -> list[Any]:
        """Return the data of a stream's events."""
        data = [line.removeprefix(b"data: ") for line in self.reply.data.split(b"\n") if line.startswith(b"data: ")]
        return [json.loads(each) for each in data if each != b"[DONE]"]

    @property
    def sampling(self) -> Any:
        """Return how the first generation chooses its tokens."""
        return self.requests[0].sampling


Effect: TypeAlias = Callable[[Seen], object]
"""Returns whether the effect is there."""


class Row(NamedTuple):
    """One parameter."""

    field: str
    """Its path in the body."""
    body: Mapping[str, Any]
    """What is added to the endpoint's smallest body; None leaves a field out."""
    effect: Effect
    """What must be seen."""
    answer: str = TEXT
    """What the model generates."""


def look(cluster: FakeCluster, gateway: RunningGateway, path: str, row: Row) -> Seen:
    """Send a row's request and return what it led to."""
    answer_with(cluster, row.answer)
    for node in cluster.decodes:
        node.requests.clear()
    body = {name: value for name, value in {**SMALLEST[path], **row.body}.items() if value is not None}
    reply = ask(gateway, path, body)
    return Seen(reply, [request for node in cluster.decodes for request in node.requests], cluster.model_dir)


def refused(param: str) -> Effect:
    """Expect a refusal that names a parameter, and that no node was asked."""

    def check(seen: Seen) -> bool:
        error = seen.reply.body["error"]
        is_named = error["param"] == param if "param" in error else f"`{param}`" in error["message"]
        return seen.reply.status == 400 and is_named and not seen.requests

    return check


def ignored(name: str) -> Effect:
    """Expect an answer that tells of a field which was left out."""
    return lambda seen: seen.reply.status == 200 and name in seen.reply.body["baton"]["ignored"]


def sampled(**fields: Any) -> Effect:
    """Expect fields of the node's sampling parameters."""

    def check(seen: Seen) -> bool:
        values = {name: getattr(seen.sampling, name) for name in fields}
        plain = {name: value if isinstance(value, int | float) else _plain(value) for name, value in values.items()}
        return seen.reply.status == 200 and plain == fields

    return check


def answered(*path: str | int, value: Any) -> Effect:
    """Expect a value in the body of the answer."""

    def check(seen: Seen) -> bool:
        found = seen.reply.body
        for key in path:
            found = found[key]
        return bool(found == value)

    return check


def prompted(messages: Sequence[Mapping[str, Any]], **options: Any) -> Effect:
    """Expect the prompt that transformers makes of messages."""

    def check(seen: Seen) -> bool:
        tokenizer = _tokenizer(seen.model_dir)
        arguments = {"add_generation_prompt": True, **options}
        text: Any = tokenizer.apply_chat_template(list(messages), tokenize=False, **arguments)  # type: ignore[arg-type]
        expected = tokenizer(text, add_special_tokens=False)["input_ids"]
        if seen.requests:
            return list(seen.requests[0].prompt_token_ids) == expected
        body = seen.reply.body
        return bool(body["tokens"] == expected if "tokens" in body else body["input_tokens"] == len(expected))

    return check


def accepted(seen: Seen) -> bool:
    """Expect an answer: the value asks for what is done anyway, or is for the client's own records."""
    return seen.reply.status == 200


def not_found(seen: Seen) -> bool:
    """Expect that there is no such model."""
    return seen.reply.status == 404


def tokens_of(seen: Seen, text: str) -> list[int]:
    """Return the tokens of a text."""
    return list(_tokenizer(seen.model_dir)(text, add_special_tokens=False)["input_ids"])


@cache
def _tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    loaded: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(str(folder))
    return loaded


def _plain(value: Any) -> Any:
    return dict(value) if hasattr(value, "items") else list(value)
