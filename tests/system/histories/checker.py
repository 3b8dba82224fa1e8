"""What clients were promised, held against what they saw: knows the contract, and nothing of how Baton keeps it.

A history is what several clients saw of one deployment, and what was done to its processes meanwhile: records with
`event` and `at`, seconds since its beginning, in the order of time.

| event | further fields |
|---|---|
| `asked` | `stream`, `prompt_tokens`, `choices`, `expected` (tokens of each), `expected_text`, maybe `request_id` |
| `begun` | `stream`, `request_id`: the headers of the answer have come |
| `output` | `stream`, `choice`, `tokens`, `text` |
| `finished` | `stream`, `choice`, `reason`, `usage` (`prompt_tokens`, `completion_tokens`, `cached_tokens`), or none |
| `usage` | `stream`, `usage`: of all choices together |
| `failed` | `stream`, `status` (a gRPC status, "HTTP 503", "EVENT", "CUT"), `reason`, `message` |
| `closed` | `stream`: nothing more can come |
| `left` | `stream`: the client has gone, on its own |
| `fault` | `kind`: kill, stop, drain, cut; `process`: what it was done to, "client": the connections of clients |
| `healed` | `process`: it serves again |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Event = Mapping[str, Any]

CUT_SECONDS = 2.0
"""For so long a process may be out of reach after its connections were cut: they are made again, and pings notice."""
_DONE = ("length", "stop")
_STATUSES = ("UNAVAILABLE", "HTTP 503", "EVENT")
"""Of errors where something is away; each has a reason. A cut connection has none."""


class Violation(NamedTuple):
    """A promise that was broken."""

    stream: str
    """Of whom."""
    rule: str
    """Which: see `violations`."""
    text: str
    """What was seen."""


class _Outage(NamedTuple):
    """A time in which a process did not do its part."""

    process: str
    kind: str
    begin: float
    end: float


def violations(history: Sequence[Event]) -> list[Violation]:
    """Return every promise that a history breaks.

    Rules: "gap", "double", "order", "value" of tokens; "text"; "end" (exactly one per choice, nothing after it, none
    missing); "error" (none where enough was left to serve); "form" of errors; "usage"; "id" (one per stream, unique);
    "hang"; "unasked".
    """
    streams: dict[str, list[Event]] = defaultdict(list)
    for event in history:
        if "stream" in event:
            streams[event["stream"]].append(event)
    outages = list(_outages(history))
    decode_nodes = frozenset(next((event["decode_nodes"] for event in history if "decode_nodes" in event), ()))
    found = list(_id_violations(streams))
    for name, events in streams.items():
        asked = [event for event in events if event["event"] == "asked"]
        if len(asked) != 1 or events[0] is not asked[0]:
            found.append(Violation(name, "unasked", f"begins with {events[0]['event']}, asked {len(asked)} times"))
            continue
        found += [Violation(name, rule, text) for rule, text in _Stream(events).check(outages, decode_nodes)]
    return found


class _Stream:
    """What a client saw of one request."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._asked = events[0]
        self._events = events[1:]
        self._tokens: dict[int, list[int]] = defaultdict(list)
        self._texts: dict[int, str] = defaultdict(str)
        self._finished: dict[int, Event] = {}
        self._failed: Event | None = None
        self._closed_at: float | None = None
        self._has_left = False

    def check(self, outages: Sequence[_Outage], decode_nodes: frozenset[str]) -> Iterator[tuple[str, str]]:
        """Yield rules that are broken, and how."""
        yield from self._replay()
        for choice in range(self._asked["choices"]):
            yield from self._check_output(choice)
        for choice in self._tokens.keys() - set(range(self._asked["choices"])):
            yield "value", f"choice {choice} was not asked for"
        if self._has_left:
            return
        if self._closed_at is None:
            yield "hang", "the stream neither ended nor broke"
        elif self._failed is not None:
            yield from self._check_error(self._failed, outages, decode_nodes)
        elif len(self._finished) < self._asked["choices"]:
            yield "end", f"closed after the ends of {len(self._finished)} of {self._asked['choices']} choices"

    def _replay(self) -> Iterator[tuple[str, str]]:
        """Take the events in, and yield what must not follow what."""
        num_prompt_tokens = self._asked["prompt_tokens"]
        for event in self._events:
            kind, choice = event["event"], event.get("choice", 0)
            if self._closed_at is not None or (self._failed is not None and kind != "closed"):
                yield "end", f"{kind} after the end of the stream"
            if kind in ("output", "finished") and choice in self._finished:
                yield "end", f"{kind} after the end of choice {choice}"
            if kind == "output":
                self._tokens[choice] += event["tokens"]
                self._texts[choice] += event["text"]
            elif kind == "finished":
                self._finished[choice] = event
                if event.get("usage"):
                    yield from _usage_violations(event["usage"], num_prompt_tokens, len(self._tokens[choice]))
            elif kind == "usage":
                num_tokens = sum(map(len, self._tokens.values()))
                yield from _usage_violations(event["usage"], num_prompt_tokens, num_tokens)
            elif kind == "failed":
                self._failed = event
            elif kind == "left":
                self._has_left = True
            elif kind == "closed":
                self._closed_at = event["at"]

    def _check_output(self, choice: int) -> Iterator[tuple[str, str]]:
        tokens, expected = self._tokens[choice], self._asked["expected"]
        text, whole = self._texts[choice], self._asked["expected_text"]
        if tokens != expected[: len(tokens)]:
            yield _difference(tokens, expected)
        finished = self._finished.get(choice)
        if not whole.startswith(text) or (finished is not None and text != whole):
            yield "text", f"choice {choice}: {text[-40:]!r} where {whole[: len(text)][-40:]!r} is right"
        if finished is None:
            return
        if finished["reason"] not in _DONE:
            yield "end", f"choice {choice} ended for {finished['reason']!r}"
        if len(tokens) < len(expected):
            yield "gap", f"choice {choice} ended after {len(tokens)} of {len(expected)} tokens"

    def _check_error(
        self, failed: Event, outages: Sequence[_Outage], decode_nodes: frozenset[str]
    ) -> Iterator[tuple[str, str]]:
        status, reason = failed["status"], failed["reason"]
        meanwhile = [each for each in outages if each.begin <= failed["at"] and each.end >= self._asked["at"]]
        is_gateway_away = any(each.process in ("gateway", "client") and each.kind != "stop" for each in meanwhile)
        if is_gateway_away and (status == "CUT" or not reason):
            return
        if status not in _STATUSES or not reason:
            yield "form", f"{status} {reason}: {failed['message']}"
        is_draining = reason.upper() == "DRAINING" and is_gateway_away
        needs_placement = not any(self._tokens.values()) or any(each.process in decode_nodes for each in meanwhile)
        is_router_away = needs_placement and any(each.process == "router" for each in meanwhile)
        if not (is_draining or is_router_away or _are_all_away(decode_nodes, meanwhile)):
            yield "error", f"{status} {reason} although enough was left to serve: {failed['message']}"


def _difference(tokens: Sequence[int], expected: Sequence[int]) -> tuple[str, str]:
    """Return the rule that wrong tokens break, and where they do."""
    both = zip(tokens, expected, strict=False)
    place = next((index for index, (token, right) in enumerate(both) if token != right), len(expected))
    rest, missing = tokens[place:], expected[place:]
    text = f"token {place}: {list(rest[:3])} where {list(missing[:3])} is right"
    if any(_begin_alike(rest, expected[again:]) for again in range(place)):
        return "double", text
    if any(_begin_alike(rest, missing[skipped:]) for skipped in range(1, len(missing))):
        return "gap", text
    return ("order" if sorted(rest) == sorted(missing[: len(rest)]) else "value"), text


def _begin_alike(tokens: Sequence[int], others: Sequence[int]) -> bool:
    length = min(len(tokens), len(others))
    return length > 0 and tokens[:length] == others[:length]


def _usage_violations(usage: Event, num_prompt_tokens: int, num_tokens: int) -> Iterator[tuple[str, str]]:
    if usage["completion_tokens"] != num_tokens:
        yield "usage", f"{usage['completion_tokens']} tokens are counted, {num_tokens} came"
    if usage["prompt_tokens"] != num_prompt_tokens:
        yield "usage", f"{usage['prompt_tokens']} prompt tokens are counted, {num_prompt_tokens} were sent"
    if not 0 <= usage["cached_tokens"] <= num_prompt_tokens:
        yield "usage", f"{usage['cached_tokens']} of {num_prompt_tokens} prompt tokens are called cached"


def _id_violations(streams: Mapping[str, Sequence[Event]]) -> Iterator[Violation]:
    owner: dict[str, str] = {}
    for name, events in streams.items():
        ids = {event["request_id"] for event in events if event.get("request_id")}
        if len(ids) > 1:
            yield Violation(name, "id", f"is called {sorted(ids)}")
        for request_id in ids:
            if owner.setdefault(request_id, name) != name:
                yield Violation(name, "id", f"has the id of {owner[request_id]}: {request_id}")


def _outages(history: Sequence[Event]) -> Iterator[_Outage]:
    for index, event in enumerate(history):
        if event["event"] == "fault":
            process, begin = event["process"], event["at"]
            if event["kind"] == "cut":
                yield _Outage(process, "cut", begin, begin + CUT_SECONDS)
                continue
            later = (each for each in history[index:] if each["event"] == "healed" and each["process"] == process)
            yield _Outage(process, event["kind"], begin, next((each["at"] for each in later), float("inf")))


def _are_all_away(nodes: frozenset[str], outages: Sequence[_Outage]) -> bool:
    """Return whether there was a moment without any of some nodes."""
    own = [each for each in outages if each.process in nodes]
    return any(
        all(any(each.process == node and each.begin <= moment <= each.end for each in own) for node in nodes)
        for moment in [each.begin for each in own]
    )
