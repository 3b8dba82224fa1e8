"""Clients that write down what they see, as records of `system.histories.checker`."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import grpc
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from baton.v1.generation_pb2 import FinishReason, SamplingParameters
from baton.v1.generation_service_pb2 import GenerateRequest, GenerateResponse, TokenSequence
from baton.v1.generation_service_pb2_grpc import GenerationServiceStub
from system.histories.oracle import Said
from system.plan import MODEL_NAME

DEADLINE_SECONDS = 60.0
"""Of every request: longer than any fault lasts."""
_ID_HEADER = "x-request-id"


@dataclass(frozen=True)
class Wish:
    """What a client asks for."""

    api: Literal["grpc", "rest"]
    """By which door."""
    prompt: Sequence[int]
    """Tokens."""
    expected: Said
    """What is right."""
    seed: int
    """Of the sampling."""
    temperature: float
    """Of the sampling; the mock's logits leave no choice."""
    choices: int
    """Continuations."""
    request_id: str
    """The client's name of it; empty: none."""
    leaves_after: int
    """Messages with output after which the client goes; 0: it stays."""

    def again(self) -> Wish:
        """Return the same once more: no two requests have one name."""
        return replace(self, request_id="")


class History:
    """Records of several threads, in the order of time."""

    def __init__(self, **about: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self.add("history", **about)

    def add(self, event: str, **fields: Any) -> None:
        """Write down that something has happened just now."""
        with self._lock:
            self.events.append({"at": round(time.monotonic() - self._began, 4), "event": event, **fields})

    def lines(self) -> str:
        """Return the history as lines of JSON."""
        return "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in self.events)


def ask(history: History, stream: str, wish: Wish, *, http_address: str, grpc_address: str) -> bool:
    """Send a request and write down all that comes; return whether it failed."""
    history.add(
        "asked",
        stream=stream,
        api=wish.api,
        prompt_tokens=len(wish.prompt),
        choices=wish.choices,
        expected=wish.expected.token_ids,
        expected_text=wish.expected.text,
        request_id=wish.request_id,
    )
    has_left = has_failed = False
    try:
        if wish.api == "grpc":
            has_left = _ask_grpc(history, stream, wish, grpc_address)
        else:
            has_left = _ask_rest(history, stream, wish, http_address)
    except grpc.RpcError as error:
        code, message = error.code().name, error.details() or ""
        history.add("failed", stream=stream, status=code, reason=_reason_of(error), message=message)
        has_failed = True
    except (OSError, http.client.HTTPException) as error:
        status = "DEADLINE_EXCEEDED" if isinstance(error, TimeoutError) else "CUT"
        history.add("failed", stream=stream, status=status, reason="", message=f"{type(error).__name__}: {error}")
        has_failed = True
    if not has_left:
        history.add("closed", stream=stream)
    return has_failed


def _reason_of(error: grpc.RpcError) -> str:
    """Return the reason in the details of an error; empty if it has none, as that of a lost connection."""
    info = ErrorInfo()
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            return next((info.reason for detail in Status.FromString(value).details if detail.Unpack(info)), "")
    return ""


def _ask_grpc(history: History, stream: str, wish: Wish, address: str) -> bool:
    sampling = SamplingParameters(
        temperature=wish.temperature,
        seed=wish.seed,
        max_token_count=len(wish.expected.token_ids),
        ignore_eos=True,
    )
    request = GenerateRequest(
        model=MODEL_NAME,
        tokens=TokenSequence(token_ids=wish.prompt),
        sampling=sampling,
        choice_count=wish.choices,
    )
    metadata = ((_ID_HEADER, wish.request_id),) if wish.request_id else ()
    with grpc.insecure_channel(address) as channel:
        call = GenerationServiceStub(channel).Generate(request, timeout=DEADLINE_SECONDS, metadata=metadata)  # type: ignore[no-untyped-call]
        request_ids = [value for key, value in call.initial_metadata() if key == _ID_HEADER]
        if request_ids:
            history.add("begun", stream=stream, request_id=request_ids[0])
        for number, response in enumerate(call, 1):
            _note_message(history, stream, response)
            if number == wish.leaves_after:
                history.add("left", stream=stream)
                call.cancel()
                return True
    return False


def _note_message(history: History, stream: str, response: GenerateResponse) -> None:
    choice = response.choice_index
    if response.token_ids or response.text:
        history.add("output", stream=stream, choice=choice, tokens=list(response.token_ids), text=response.text)
    if response.HasField("finished"):
        end = response.finished
        usage = {
            "prompt_tokens": end.usage.prompt_token_count,
            "completion_tokens": end.usage.completion_token_count,
            "cached_tokens": end.usage.cached_token_count,
        }
        reason = FinishReason.Name(end.reason).removeprefix("FINISH_REASON_").lower()
        history.add(
            "finished", stream=stream, choice=choice, reason=reason, usage=usage, request_id=end.request_id,
            attempts=end.attempt_count,
        )  # fmt: skip


def _ask_rest(history: History, stream: str, wish: Wish, address: str) -> bool:
    body = {
        "model": MODEL_NAME,
        "prompt": list(wish.prompt),
        "max_tokens": len(wish.expected.token_ids),
        "temperature": wish.temperature,
        "seed": wish.seed,
        "n": wish.choices,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"content-type": "application/json", **({_ID_HEADER: wish.request_id} if wish.request_id else {})}
    connection = http.client.HTTPConnection(address, timeout=DEADLINE_SECONDS)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body).encode(), headers)
        response = connection.getresponse()
        history.add("begun", stream=stream, request_id=response.getheader(_ID_HEADER) or "")
        if response.status != http.client.OK:
            error = json.loads(response.read())["error"]
            history.add(
                "failed", stream=stream, status=f"HTTP {response.status}", reason=error["code"] or "",
                message=error["message"],
            )  # fmt: skip
            return False
        return _read_events(history, stream, wish, response)
    finally:
        connection.close()


def _read_events(history: History, stream: str, wish: Wish, response: http.client.HTTPResponse) -> bool:
    num_outputs, is_over = 0, False
    for line in response:
        data = line.decode().strip().removeprefix("data: ")
        if not data or data.startswith(":"):
            continue
        if data == "[DONE]":
            is_over = True
            continue
        event = json.loads(data)
        if "error" in event:
            error = event["error"]
            history.add("failed", stream=stream, status="EVENT", reason=error["code"] or "", message=error["message"])
            return False
        for choice in event["choices"]:
            _note_choice(history, stream, choice)
            num_outputs += bool(choice.get("token_ids"))
        if event.get("usage"):
            history.add("usage", stream=stream, usage=_openai_usage(event["usage"]))
        if wish.leaves_after and num_outputs >= wish.leaves_after:
            history.add("left", stream=stream)
            return True
    if not is_over:
        history.add("failed", stream=stream, status="CUT", reason="", message="the connection ended before [DONE]")
    return False


def _note_choice(history: History, stream: str, choice: dict[str, Any]) -> None:
    index = choice["index"]
    if choice.get("token_ids") or choice["text"]:
        tokens = choice.get("token_ids") or []
        history.add("output", stream=stream, choice=index, tokens=tokens, text=choice["text"])
    if choice["finish_reason"]:
        history.add("finished", stream=stream, choice=index, reason=choice["finish_reason"])


def _openai_usage(usage: dict[str, Any]) -> dict[str, int]:
    return {
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": usage["completion_tokens"],
        "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
    }
