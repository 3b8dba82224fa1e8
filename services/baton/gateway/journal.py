"""The last generations of this process, for people who look at them: nothing is noted that a token would pay for."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from baton.errors import BatonError
from baton.gateway.call import Call
from baton.gateway.requests import GenerationResult, PreparedPrompt
from baton.gateway.token_stream import Progress
from baton.v1.router_service_pb2 import Placement

MAX_ENTRIES = 64
"""Generations remembered; the oldest goes first."""
_WATCHED_SECONDS = 15.0


@dataclass(slots=True)
class Entry:
    """One generation. What changes with every token is read from `progress` and `call`, which its end lets go."""

    name: str
    """Unique name of the generation."""
    route: str
    """Path or method that serves it."""
    num_prompt_tokens: int
    """Tokens of the prompt."""
    began_at: float
    """Seconds since 1970."""
    arrival_seconds: float
    """When the request came, by the event loop's clock."""
    call: Call | None
    """The client's request while it runs."""
    progress: Progress | None
    """What it has come to while it runs."""
    placement: Placement | None = None
    """Of the last attempt, at the end."""
    num_output_tokens: int = 0
    """Tokens generated, at the end."""
    first_token_seconds: float | None = None
    """When the first token came, at the end."""
    ended_seconds: float | None = None
    """End by the event loop's clock; None: it runs."""
    result: GenerationResult | None = None
    """How it ended; None: it runs or has failed."""
    error: str = ""
    """Why it failed, as the client was told; empty if it did not."""

    def settle(self) -> None:
        """Copy what is left of the request; its tokens and its body, which may be large, go."""
        if self.progress is not None and self.call is not None:
            self.placement = self.progress.placement
            self.num_output_tokens = len(self.progress.output_token_ids)
            self.first_token_seconds = self.call.first_token_seconds


class Journal:
    """Remembers generations from their beginning on.

    Args:
        clock: The event loop's.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._entries: deque[Entry] = deque(maxlen=MAX_ENTRIES)
        self._looked_seconds = -_WATCHED_SECONDS

    @contextmanager
    def following(self, name: str, call: Call, prompt: PreparedPrompt, progress: Progress) -> Iterator[Entry]:
        """Remember a generation as long as the context lasts, and how that ends."""
        progress.wants_kv_timeline = self._clock() - self._looked_seconds < _WATCHED_SECONDS
        entry = Entry(name, call.route, len(prompt.token_ids), time.time(), prompt.arrival_seconds, call, progress)
        self._entries.append(entry)
        try:
            yield entry
        except BatonError as error:
            entry.error = error.message
            raise
        except BaseException as error:
            entry.error = type(error).__name__
            raise
        finally:
            entry.settle()
            entry.call = entry.progress = None
            entry.ended_seconds = self._clock()

    def look(self) -> list[Entry]:
        """Return all entries, the latest first; generations that begin soon are told to bring their KV's timeline."""
        self._looked_seconds = self._clock()
        for entry in self._entries:
            entry.settle()
        return list(reversed(self._entries))
