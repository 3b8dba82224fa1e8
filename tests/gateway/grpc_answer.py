"""An answer over gRPC, put together from its stream as clients do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from baton.v1 import generation_service_pb2 as messages


class Answer:
    """One choice, put together from a stream as clients do."""

    def __init__(self) -> None:
        self.text = self.reasoning = ""
        self.calls: list[messages.ToolCall] = []
        self.token_ids: list[int] = []
        self.logprobs: list[Any] = []
        self.end = messages.GenerationEnd()

    def add(self, response: messages.GenerateResponse) -> None:
        """Take a message."""
        self.text += response.text
        self.reasoning += response.reasoning
        self.token_ids += response.token_ids
        self.logprobs += response.logprobs
        for delta in response.tool_calls:
            if delta.id:
                assert delta.index == len(self.calls)
                self.calls.append(messages.ToolCall(id=delta.id, name=delta.name))
            self.calls[delta.index].arguments += delta.arguments
        if response.HasField("finished"):
            self.end = response.finished

    @property
    def called(self) -> list[tuple[str, str]]:
        """Return names and arguments of the calls."""
        return [(call.name, call.arguments) for call in self.calls]


def answers(responses: Iterable[messages.GenerateResponse]) -> list[Answer]:
    """Return the choices of a stream."""
    choices: dict[int, Answer] = defaultdict(Answer)
    for response in responses:
        choices[response.choice_index].add(response)
    return [choices[index] for index in sorted(choices)]
