"""Streaming clients in threads: what a client sees, as it sees it, with a deadline on everything."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from baton.v1.generation_pb2 import PlacementSummary, SamplingParameters
from baton.v1.generation_service_pb2 import GenerateRequest, TokenSequence
from baton.v1.generation_service_pb2_grpc import GenerationServiceStub
from system.cluster import Cluster
from system.plan import MODEL_NAME

DEADLINE_SECONDS = 60.0
"""Nothing that a client asks for may take longer, whatever dies meanwhile."""


@dataclass(frozen=True)
class Ask:
    """One request."""

    prompt_token_ids: tuple[int, ...]
    """Prompt."""
    num_tokens: int
    """Tokens to generate; end tokens are ordinary tokens."""
    temperature: float = 0.0
    """0: greedy."""
    seed: int = 0
    """Seed of the sampling."""
    cache_salt: str = ""
    """Requests of another salt find nothing in prefix caches."""
    model: str = MODEL_NAME
    """The model, or an adapter of it."""


@dataclass
class Outcome:
    """What a client has seen."""

    token_ids: list[int] = field(default_factory=list)
    """Tokens received; REST clients see none."""
    text: str = ""
    """Text received."""
    error: str = ""
    """Why it failed, in the words that the client got; empty if it did not."""
    finish_reason: str = ""
    """Why it ended; empty if it failed."""
    num_chunks: int = 0
    """Messages with output."""
    placement: PlacementSummary = field(default_factory=PlacementSummary)
    """Where it ran; REST clients see none."""
    seconds: float = 0.0
    """From the request to the end."""


class Stream:
    """One request in flight, read by a thread of its own.

    Args:
        read: Fills the outcome until the stream ends, calling its second argument after every chunk.
    """

    def __init__(self, read: Callable[[Outcome, Callable[[], None]], None]) -> None:
        self._read = read
        self._outcome = Outcome()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait_for_chunks(self, count: int) -> None:
        """Wait until this many messages with output have come.

        Raises:
            AssertionError: If the stream ends before, or they take longer than DEADLINE_SECONDS.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._outcome.num_chunks >= count or not self._thread.is_alive() or self._outcome.seconds,
                DEADLINE_SECONDS,
            )
        assert self._outcome.num_chunks >= count, f"only {self._outcome.num_chunks} chunks came: {self._outcome.error}"

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return not self._thread.is_alive()

    def outcome(self, timeout_seconds: float = DEADLINE_SECONDS) -> Outcome:
        """Return what came, once the stream has ended.

        Raises:
            AssertionError: If it has not by then: the client hangs.
        """
        self._thread.join(timeout_seconds)
        assert not self._thread.is_alive(), f"the stream hangs after {self._outcome.num_chunks} chunks"
        return self._outcome

    def _run(self) -> None:
        started = time.monotonic()
        try:
            self._read(self._outcome, self._note_chunk)
        except grpc.RpcError as error:
            self._outcome.error = f"{error.code().name}: {error.details()}"
        except (OSError, http.client.HTTPException) as error:
            self._outcome.error = f"{type(error).__name__}: {error}"
        with self._changed:
            self._outcome.seconds = time.monotonic() - started
            self._changed.notify_all()

    def _note_chunk(self) -> None:
        with self._changed:
            self._outcome.num_chunks += 1
            self._changed.notify_all()


def open_grpc(cluster: Cluster, ask: Ask) -> Stream:
    """Send a request through the public gRPC API."""

    def read(outcome: Outcome, note_chunk: Callable[[], None]) -> None:
        with grpc.insecure_channel(cluster.grpc_address) as channel:
            stub = GenerationServiceStub(channel)  # type: ignore[no-untyped-call]
            for response in stub.Generate(grpc_request(ask), timeout=DEADLINE_SECONDS):
                outcome.token_ids += response.token_ids
                outcome.text += response.text
                if response.HasField("finished"):
                    outcome.finish_reason = str(response.finished.reason)
                    outcome.placement.CopyFrom(response.finished.placement)
                else:
                    note_chunk()

    return Stream(read)


def open_rest(cluster: Cluster, ask: Ask) -> Stream:
    """Send a request through POST /v1/completions, streamed."""

    def read(outcome: Outcome, note_chunk: Callable[[], None]) -> None:
        connection = http.client.HTTPConnection(*cluster.http_address, timeout=DEADLINE_SECONDS)
        try:
            connection.request("POST", "/v1/completions", rest_body(ask), {"content-type": "application/json"})
            response = connection.getresponse()
            if response.status != http.client.OK:
                outcome.error = response.read().decode()
                return
            for line in response:
                _take_event(line.decode().strip(), outcome, note_chunk)
            if not (outcome.finish_reason or outcome.error):
                outcome.error = "the connection was cut before the stream ended"
        finally:
            connection.close()

    return Stream(read)


def grpc_request(ask: Ask) -> GenerateRequest:
    """Return the message for the public gRPC API."""
    sampling = SamplingParameters(
        temperature=ask.temperature, seed=ask.seed, max_token_count=ask.num_tokens, ignore_eos=True
    )
    return GenerateRequest(
        model=ask.model,
        tokens=TokenSequence(token_ids=ask.prompt_token_ids),
        sampling=sampling,
        cache_salt=ask.cache_salt,
    )


def rest_body(ask: Ask) -> bytes:
    """Return the body for POST /v1/completions, streamed."""
    body: dict[str, Any] = {
        "model": ask.model,
        "prompt": list(ask.prompt_token_ids),
        "max_tokens": ask.num_tokens,
        "temperature": ask.temperature,
        "seed": ask.seed,
        "ignore_eos": True,
        "cache_salt": ask.cache_salt,
        "stream": True,
    }
    return json.dumps(body).encode()


def _take_event(line: str, outcome: Outcome, note_chunk: Callable[[], None]) -> None:
    data = line.removeprefix("data: ")
    if data == line or data == "[DONE]":
        return
    event = json.loads(data)
    if "error" in event:
        outcome.error = json.dumps(event["error"])
        return
    (choice,) = event["choices"]
    outcome.text += choice["text"]
    outcome.finish_reason = choice["finish_reason"] or ""
    if not outcome.finish_reason:
        note_chunk()
