"""`baton chat` as a user runs it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from typer.testing import CliRunner

from baton.cli.app import make_app
from baton.cli.chat import show
from baton.cli.completion_stream import StreamPiece
from cli.gateway import running_gateway


def test_one_message_is_answered_with_its_cost_below() -> None:
    """`--message` asks once; the model is the first that is listed."""
    with running_gateway() as url:
        result = CliRunner().invoke(make_app(), ["chat", "--url", url, "--message", "hello"])

    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[0] == "HELLO"
    assert lines[1].startswith("TTFT ")
    assert lines[2] == "prefill and decode on d"


@pytest.mark.parametrize(("options", "environment"), [(["--api-key", "sk-1"], {}), ([], {"BATON_API_KEY": "sk-1"})])
def test_the_key_is_sent_with_every_request(options: list[str], environment: dict[str, str]) -> None:
    """To the list of models and to the answer, from the option or the environment."""
    with running_gateway(key="sk-1") as url:
        result = CliRunner(env=environment).invoke(make_app(), ["chat", "--url", url, "--message", "hello", *options])

    assert result.exit_code == 0
    assert result.stdout.startswith("HELLO\n")


def test_a_missing_key_is_the_gateways_refusal() -> None:
    """In its own words."""
    with running_gateway(key="sk-1") as url:
        result = CliRunner(env={"BATON_API_KEY": ""}).invoke(make_app(), ["chat", "--url", url, "--message", "hello"])

    assert result.exit_code != 0
    assert "no such key" in str(result.exception)


def test_a_conversation_goes_on_after_an_error() -> None:
    """A failed answer is reported, and the next question is asked; an empty line ends it."""
    with running_gateway() as url:
        result = CliRunner().invoke(make_app(), ["chat", "--url", url, "--model", "failing"], input="one\ntwo\n\n")

    assert result.exit_code == 0
    assert result.stdout.count("error: node died") == 2


def test_text_is_printed_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brackets in an answer are no markup."""
    stream = io.StringIO()
    pieces = iter([StreamPiece("[bold]x"), StreamPiece("[/]")])

    answer = show(Console(file=stream, width=80), pieces, began_seconds=0.0)

    assert answer.text == "[bold]x[/]"
    assert stream.getvalue().startswith("[bold]x[/]\n")


def test_an_answer_cannot_steer_the_terminal() -> None:
    """Control characters are shown as such; the conversation keeps what the model said."""
    stream = io.StringIO()

    answer = show(Console(file=stream, width=80), iter([StreamPiece("a\x1b[2J\nc")]), began_seconds=0.0)

    assert stream.getvalue().startswith("a\N{REPLACEMENT CHARACTER}[2J\nc\n")
    assert answer.text == "a\x1b[2J\nc"
