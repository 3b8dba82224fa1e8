"""`baton chat`: a conversation in the terminal, with what each answer cost and where it ran."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from baton.capacity.placement_table import format_seconds
from baton.cli.cluster.gateway_client import KEY_VARIABLE, ChatMessage, StreamPiece, list_models, stream_chat
from baton.cli.terminal.console import make_console
from baton.cli.terminal.tables import format_bytes
from baton.errors import BatonError, NotFoundError


class Answer:
    """Gathers the pieces of an answer with their times.

    TTFT is what the client saw. The decode rate is what the decode node measured: pieces may reach the client in
    bursts. The client's own times stand in where the gateway reports none.
    """

    def __init__(self, began_seconds: float) -> None:
        self.text = ""
        self._began_seconds = began_seconds
        self._first_seconds: float | None = None
        self._last_seconds = began_seconds
        self._num_pieces = 0
        self._usage: Mapping[str, object] = {}
        self._placement: Mapping[str, object] = {}

    def add(self, piece: StreamPiece, now_seconds: float) -> None:
        """Take a piece that arrived now (`time.monotonic`)."""
        if piece.text:
            if self._first_seconds is None:
                self._first_seconds = now_seconds
            self._last_seconds = now_seconds
            self._num_pieces += 1
        self.text += piece.text
        self._usage = piece.usage or self._usage
        self._placement = piece.placement or self._placement

    def summary_lines(self) -> Sequence[str]:
        """Return the speed, and the placement where the gateway reported one."""
        speed = self._speed()
        return [speed, *placement_lines(self._placement)] if self._placement else [speed]

    def _speed(self) -> str:
        if self._first_seconds is None:
            return "no text"
        num_tokens = int(number(self._usage, "completion_tokens")) or self._num_pieces
        parts = [
            f"TTFT {format_seconds(self._first_seconds - self._began_seconds)}",
            f"{num_tokens} token{'s' if num_tokens != 1 else ''}",
        ]
        decode_seconds = number(self._placement, "decode_seconds") or self._last_seconds - self._first_seconds
        if num_tokens > 1 and decode_seconds > 0:
            parts.append(f"{(num_tokens - 1) / decode_seconds:.1f} tokens/s")
        return " · ".join(parts)


def placement_lines(placement: Mapping[str, object]) -> Sequence[str]:
    """Return where an answer ran, and what its transfer cost, from the `baton` object of the stream."""
    decode = str(placement.get("decode_node") or "?")
    prefill = str(placement.get("prefill_node") or decode)
    num_cached = max(number(placement, "decode_cached_tokens"), number(placement, "prefill_cached_tokens"))
    cached = f", {int(num_cached)} tokens cached" if num_cached else ""
    if placement.get("fallback_reason"):
        return [f"prefill on {decode} after a fallback: {placement['fallback_reason']}{cached} · decode on {decode}"]
    if placement.get("pull_node"):
        num_bytes, seconds = number(placement, "kv_bytes"), number(placement, "pull_seconds")
        pulled = f"{int(number(placement, 'pulled_tokens'))} tokens from the cache of {placement['pull_node']}"
        pull = f"{pulled}, KV {format_bytes(num_bytes)} in {format_seconds(seconds)}"
        return [f"prefill and decode on {decode}{cached}", pull]
    if prefill == decode:
        return [f"prefill and decode on {decode}{cached}"]
    transfer = number(placement, "transfer_seconds")
    num_resumes = int(number(placement, "kv_resumes"))
    resumed = f", after {num_resumes} of its streams had broken" if num_resumes else ""
    cost = f"in {format_seconds(transfer)}, {1 - number(placement, 'exposed_share'):.0%} hidden behind computation"
    return [
        f"prefill on {prefill} → decode on {decode}{cached}{resumed}",
        f"KV {format_bytes(number(placement, 'kv_bytes'))} {cost if transfer else 'faster than can be measured'}",
    ]


def number(values: Mapping[str, object], key: str) -> float:
    """Return a number of a JSON object, 0 where it has none."""
    value = values.get(key, 0)
    return float(value) if isinstance(value, int | float) else 0.0


DEFAULT_URL = "http://127.0.0.1:8000"
"""Where `baton up` serves the REST API."""

_HARMLESS = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)), "\N{REPLACEMENT CHARACTER}")
"""Replaces control characters but tab and newline: a model must not steer the user's terminal."""


def command(
    url: Annotated[str, typer.Option(help="Address of the gateway.", envvar="BATON_URL")] = DEFAULT_URL,
    model: Annotated[str, typer.Option(help="Model; default: the first that the gateway lists as serving.")] = "",
    message: Annotated[str, typer.Option("--message", "-m", help="Ask this and leave.")] = "",
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 256,
    temperature: Annotated[float, typer.Option(min=0, help="0: always the most probable token.")] = 0.0,
    api_key_file: Annotated[
        Path | None,
        typer.Option(help=f"File with the API key; else {KEY_VARIABLE} is it.", exists=True, dir_okay=False),
    ] = None,
) -> None:
    """Talk to the model; every answer ends with its speed, its placement and what its KV transfer cost."""
    console = make_console()
    api_key = api_key_file.read_text("utf-8").strip() if api_key_file else os.environ.get(KEY_VARIABLE, "")
    states = list_models(url, api_key)
    if not states:
        raise NotFoundError(f"the gateway at {url} serves no model")
    serving = [name for name, state in states.items() if state in ("serving", "")]
    model = model or (serving or [*states])[0]
    if model not in states:
        raise NotFoundError(f"--model: {model!r} is not served at {url}; served are {', '.join(states)}")
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
    """Print an answer, asked for at `began_seconds` (`time.monotonic`), as it arrives, then its cost; return it."""
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
