"""`baton chat`: a conversation in the terminal, with what each answer cost and where it ran."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Console

from baton.cli.answer import Answer
from baton.cli.completion_stream import KEY_VARIABLE, ChatMessage, StreamPiece, list_models, stream_chat
from baton.cli.console import make_console
from baton.errors import BatonError, NotFoundError

DEFAULT_URL = "http://127.0.0.1:8000"
"""Where `baton up` serves the REST API."""

_HARMLESS = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)), "\N{REPLACEMENT CHARACTER}")
"""Replaces control characters but tab and newline: a model must not steer the user's terminal."""


def command(
    url: Annotated[str, typer.Option(help="Address of the gateway.", envvar="BATON_URL")] = DEFAULT_URL,
    model: Annotated[str, typer.Option(help="Model; default: the first that the gateway lists.")] = "",
    message: Annotated[str, typer.Option("--message", "-m", help="Ask this and leave.")] = "",
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 256,
    temperature: Annotated[float, typer.Option(min=0, help="0: always the most probable token.")] = 0.0,
    api_key: Annotated[str, typer.Option(help="Sent as a bearer token.", envvar=KEY_VARIABLE)] = "",
) -> None:
    """Talk to the model; every answer ends with its speed, its placement and what its KV transfer cost."""
    console = make_console()
    models = list_models(url, api_key)
    if not models:
        raise NotFoundError(f"the gateway at {url} serves no model")
    model = model or models[0]
    conversation: list[ChatMessage] = []
    for question in _questions(console, message):
        conversation.append(ChatMessage("user", question))
        pieces = stream_chat(url, model, conversation, max_tokens=max_tokens, temperature=temperature, api_key=api_key)
        try:
            answer = show(console, pieces, began_seconds=time.monotonic())
        except BatonError as error:
            if message:
                raise
            console.print(f"[red]error:[/] {error.message}", highlight=False)
            conversation.pop()
            continue
        conversation.append(ChatMessage("assistant", answer.text))


def show(console: Console, pieces: Iterator[StreamPiece], *, began_seconds: float) -> Answer:
    """Print an answer while it arrives, then what it cost; return it.

    Args:
        console: Where to.
        pieces: The answer.
        began_seconds: `time.monotonic` when it was asked for.
    """
    answer = Answer(began_seconds)
    for piece in pieces:
        answer.add(piece, time.monotonic())
        console.print(piece.text.translate(_HARMLESS), end="", markup=False, highlight=False, soft_wrap=True)
    console.print()
    for line in answer.summary_lines():
        console.print(line, style="dim", markup=False, highlight=False)
    return answer


def _questions(console: Console, message: str) -> Iterator[str]:
    if message:
        yield message
        return
    console.print("Type a message; an empty line or Ctrl-D ends the conversation.", style="dim")
    while True:
        try:
            question = console.input("[bold cyan]you >[/] ")
        except EOFError:
            return
        if not question.strip():
            return
        yield question
