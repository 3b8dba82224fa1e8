"""Tests of the checker: it finds nothing in a history that was recorded, and whatever is done to it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from system.histories.checker import violations

SAMPLE = Path(__file__).parent / "sample.jsonl"
"""Recorded: three clients while a decode node is killed."""
Events = list[dict[str, Any]]


def recorded() -> Events:
    """Return the recorded history."""
    return [json.loads(line) for line in SAMPLE.read_text().splitlines()]


def _whole_stream(events: Events, api: str) -> tuple[str, list[int]]:
    """Return a stream that ended well, by its name and the places of its outputs of two tokens and more."""
    ended = {event["stream"] for event in events if event["event"] == "finished"}
    for event in events:
        if event["event"] == "asked" and event["api"] == api and event["stream"] in ended and event["choices"] == 1:
            outputs = [
                index
                for index, each in enumerate(events)
                if each.get("stream") == event["stream"] and each["event"] == "output" and each["tokens"]
            ]
            if len(outputs) > 3:
                return event["stream"], outputs
    raise AssertionError(f"no {api} stream of the sample has three messages")


def _lose_a_message(events: Events) -> None:
    _, outputs = _whole_stream(events, "grpc")
    del events[outputs[1]]


def _double_a_token(events: Events) -> None:
    _, outputs = _whole_stream(events, "rest")
    tokens = events[outputs[2]]["tokens"]
    tokens.insert(1, tokens[0])


def _double_a_message(events: Events) -> None:
    _, outputs = _whole_stream(events, "grpc")
    events.insert(outputs[2], copy.deepcopy(events[outputs[2]]))


def _swap_messages(events: Events) -> None:
    _, outputs = _whole_stream(events, "grpc")
    first, second = events[outputs[1]], events[outputs[2]]
    first["tokens"], second["tokens"] = second["tokens"], first["tokens"]


def _take_a_token_of_another(events: Events) -> None:
    _, outputs = _whole_stream(events, "rest")
    tokens = events[outputs[1]]["tokens"]
    tokens[0] = (tokens[0] + 1) % 512


def _change_text(events: Events) -> None:
    _, outputs = _whole_stream(events, "rest")
    events[outputs[1]]["text"] += "!"


def _end_twice(events: Events) -> None:
    stream, _ = _whole_stream(events, "grpc")
    end = _place_of(events, stream, "finished")
    events.insert(end + 1, copy.deepcopy(events[end]))


def _speak_after_the_end(events: Events) -> None:
    stream, outputs = _whole_stream(events, "grpc")
    events.insert(_place_of(events, stream, "closed") + 1, {**events[outputs[0]], "tokens": [], "text": ""})


def _never_end(events: Events) -> None:
    stream, _ = _whole_stream(events, "grpc")
    del events[_place_of(events, stream, "finished")]


def _hang(events: Events) -> None:
    stream, _ = _whole_stream(events, "rest")
    del events[_place_of(events, stream, "closed")]


def _end_early(events: Events) -> None:
    stream, outputs = _whole_stream(events, "grpc")
    end = events[_place_of(events, stream, "finished")]
    end["usage"]["completion_tokens"] -= len(events[outputs[-1]]["tokens"])
    del events[outputs[-1]]


def _miscount(events: Events) -> None:
    stream, _ = _whole_stream(events, "rest")
    events[_place_of(events, stream, "usage")]["usage"]["completion_tokens"] += 1


def _share_an_id(events: Events) -> None:
    first, second = [event for event in events if event["event"] == "begun"][:2]
    second["request_id"] = first["request_id"]


def _fail_without_a_cause(events: Events) -> None:
    stream, outputs = _whole_stream(events, "grpc")
    _fail(events, stream, outputs[1], status="UNAVAILABLE", reason="NO_NODE")


def _fail_without_a_name(events: Events) -> None:
    stream, outputs = _whole_stream(events, "grpc")
    _fail(events, stream, outputs[1], status="INTERNAL", reason="")


def _answer_nobody(events: Events) -> None:
    stream, _ = _whole_stream(events, "rest")
    del events[_place_of(events, stream, "asked")]


def _fail(events: Events, stream: str, place: int, **fields: str) -> None:
    """Have a stream fail in place of all that it says from some place on."""
    at = events[place]["at"]
    events[place:] = [event for event in events[place:] if event.get("stream") != stream]
    failure = {"at": at, "event": "failed", "stream": stream, "message": "", **fields}
    events[place:place] = [failure, {"at": at, "event": "closed", "stream": stream}]


def _place_of(events: Events, stream: str, kind: str) -> int:
    return next(index for index, event in enumerate(events) if event.get("stream") == stream and event["event"] == kind)


def test_a_recorded_history_breaks_no_promise() -> None:
    """Although a decode node was killed in it, under streams that moved."""
    events = recorded()

    assert violations(events) == []
    assert any(event["event"] == "fault" for event in events)
    assert any(event.get("attempts", 1) > 1 for event in events)


@pytest.mark.parametrize(
    ("plant", "rule"),
    [
        (_lose_a_message, "gap"),
        (_double_a_token, "double"),
        (_double_a_message, "double"),
        (_swap_messages, "order"),
        (_take_a_token_of_another, "value"),
        (_change_text, "text"),
        (_end_twice, "end"),
        (_speak_after_the_end, "end"),
        (_never_end, "end"),
        (_hang, "hang"),
        (_end_early, "gap"),
        (_miscount, "usage"),
        (_share_an_id, "id"),
        (_fail_without_a_cause, "error"),
        (_fail_without_a_name, "form"),
        (_answer_nobody, "unasked"),
    ],
)
def test_a_planted_violation_is_found(plant: Callable[[Events], None], rule: str) -> None:
    """Each breaks one promise to one client."""
    events = recorded()
    plant(events)

    assert rule in {violation.rule for violation in violations(events)}


@pytest.mark.parametrize(("process", "is_allowed"), [("router", True), ("decode-0", False), ("cache-index", False)])
def test_an_error_is_allowed_where_what_it_names_was_away(process: str, *, is_allowed: bool) -> None:
    """The same refusal beside several faults."""
    events: Events = [
        {"at": 0.0, "event": "history", "decode_nodes": ["decode-0", "decode-1"]},
        {"at": 0.1, "event": "fault", "kind": "kill", "process": process},
        {"at": 0.2, "event": "asked", "stream": "a", "prompt_tokens": 1, "choices": 1, "expected": [5],
         "expected_text": "x"},
        {"at": 0.9, "event": "failed", "stream": "a", "status": "UNAVAILABLE", "reason": "ROUTER_UNAVAILABLE",
         "message": ""},
        {"at": 0.9, "event": "closed", "stream": "a"},
    ]  # fmt: skip

    assert (violations(events) == []) == is_allowed
