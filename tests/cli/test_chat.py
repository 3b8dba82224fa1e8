"""What `baton chat` says below an answer."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from baton.cli.app import make_app
from baton.cli.chat import Answer, placement_lines, show
from baton.cli.cluster.gateway_client import StreamPiece
from cli.gateway import running_gateway


def test_speed_is_counted_from_the_first_token() -> None:
    """TTFT from the question; tokens/s over the tokens after the first."""
    answer = Answer(10.0)
    for now_seconds, text in ((10.2, ""), (10.5, "a"), (11.5, "b")):
        answer.add(StreamPiece(text), now_seconds)
    answer.add(StreamPiece("", {"completion_tokens": 11}), 11.6)

    assert answer.text == "ab"
    assert answer.summary_lines() == ["TTFT 500 ms · 11 tokens · 10.0 tokens/s"]


def test_the_decode_node_knows_the_rate_best() -> None:
    """Pieces that arrive in one burst do not make the model look fast."""
    answer = Answer(0.0)
    for now_seconds in (1.0, 1.001):
        answer.add(StreamPiece("a"), now_seconds)
    answer.add(StreamPiece("", {"completion_tokens": 11}, {"decode_node": "d", "decode_seconds": 2.0}), 1.002)

    assert answer.summary_lines()[0] == "TTFT 1 s · 11 tokens · 5.0 tokens/s"


def test_an_answer_without_text_says_so() -> None:
    """Nothing is divided by zero."""
    assert Answer(0.0).summary_lines() == ["no text"]


def test_a_streamed_prefill_shows_nodes_bytes_and_the_hidden_share() -> None:
    """Two lines: where, and what the transfer cost."""
    lines = placement_lines(
        {
            "prefill_node": "prefill-torch",
            "decode_node": "decode-mlx",
            "kv_bytes": 1_070_000,
            "transfer_seconds": 0.2,
            "exposed_share": 0.25,
            "decode_cached_tokens": 0,
            "prefill_cached_tokens": 32,
            "fallback_reason": "",
        }
    )

    assert lines == [
        "prefill on prefill-torch → decode on decode-mlx, 32 tokens cached",
        "KV 1.07 MB in 200 ms, 75% hidden behind computation",
    ]


def test_a_transfer_that_seems_to_take_no_time_is_not_said_to() -> None:
    """The two nodes' clocks agree within half a round trip: a frame may seem to arrive before it was ready."""
    places = {"prefill_node": "p", "decode_node": "d", "kv_bytes": 12_300, "transfer_seconds": 0.0}

    assert placement_lines(places)[1] == "KV 12.3 kB faster than can be measured"


def test_a_local_prefill_is_one_line() -> None:
    """Nothing was sent."""
    assert placement_lines({"prefill_node": "d", "decode_node": "d"}) == ["prefill and decode on d"]


def test_a_pull_shows_from_where_and_how_long() -> None:
    """A second line."""
    places = {"prefill_node": "d", "decode_node": "d", "decode_cached_tokens": 16}
    pull = {"pull_node": "e", "pulled_tokens": 640, "pull_seconds": 0.25, "kv_bytes": 84_000_000}

    lines = placement_lines(places | pull)

    assert lines == [
        "prefill and decode on d, 16 tokens cached",
        "640 tokens from the cache of e, KV 84 MB in 250 ms",
    ]


def test_a_fallback_is_not_hidden() -> None:
    """The reason is shown."""
    (line,) = placement_lines({"prefill_node": "d", "decode_node": "d", "fallback_reason": "UNAVAILABLE"})

    assert "after a fallback: UNAVAILABLE" in line


def test_one_message_is_answered_with_its_cost_below() -> None:
    """`--message` asks once; the model is the first that is listed."""
    with running_gateway() as url:
        result = CliRunner().invoke(make_app(), ["chat", "--url", url, "--message", "hello"])

    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[0] == "HELLO"
    assert lines[1].startswith("TTFT ")
    assert lines[2] == "prefill and decode on d"


@pytest.mark.parametrize("variable", ["sk-1", ""])
def test_the_key_is_sent_with_every_request(variable: str, tmp_path: Path) -> None:
    """To the list of models and to the answer, from a file or the environment; arguments are for all users to read."""
    options, environment = list[str](), {"BATON_API_KEY": variable}
    if not variable:
        (tmp_path / "key").write_text("sk-1\n")
        options = ["--api-key-file", str(tmp_path / "key")]
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
