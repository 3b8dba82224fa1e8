"""From the command line to sessions and arrivals."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.serve.options import make_arrivals, make_sessions, make_warm_up, parser


def sessions_of(*arguments: str) -> list[tuple[int, int]]:
    """Return (length of the prompt, output tokens) of the first turns."""
    sessions = make_sessions(parser().parse_args(["--token-ids", "3:90", "--count", "4", *arguments]))
    return [(len(session.turns[0].prompt), session.turns[0].max_tokens) for session in sessions]


@pytest.mark.parametrize(
    ("arguments", "lengths"),
    [
        (("--dataset", "prefill-heavy"), (462, 16)),
        (("--dataset", "decode-heavy"), (462, 256)),
        (("--dataset", "random", "--prompt-tokens", "7", "--output-tokens", "2"), (7, 2)),
        (
            ("--dataset", "shared-prefix", "--prefix-tokens", "9", "--prompt-tokens", "7", "--output-tokens", "2"),
            (16, 2),
        ),
    ],
)
def test_each_dataset_has_the_lengths_asked_for(arguments: tuple[str, ...], lengths: tuple[int, int]) -> None:
    """Four sessions of exact lengths."""
    assert sessions_of(*arguments) == [lengths] * 4


def test_a_trace_is_replayed_at_its_times(tmp_path: Path) -> None:
    """Five times as fast."""
    path = tmp_path / "t.jsonl"
    path.write_text(
        '{"timestamp": 1000, "input_length": 8, "output_length": 2, "hash_ids": [0]}\n'
        '{"timestamp": 6000, "input_length": 8, "output_length": 2, "hash_ids": [0]}\n'
    )
    options = parser().parse_args(["--dataset", "mooncake", "--path", str(path), "--arrivals", "trace", "--speed", "5"])

    assert make_arrivals(options, make_sessions(options)) == [0.0, 1.0]


@pytest.mark.parametrize("arrivals", ["at-once", "poisson"])
def test_each_arrival_process_has_a_time_per_session(arrivals: str) -> None:
    """Ascending, the same for the same seed."""
    options = parser().parse_args(["--arrivals", arrivals, "--count", "20"])
    sessions = make_sessions(options)

    assert make_arrivals(options, sessions) == sorted(make_arrivals(options, sessions))
    assert len(make_arrivals(options, sessions)) == 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--dataset", "azure"), "needs --path"),
        (("--token-ids", "3:90", "--chat"), "needs /v1/completions"),
        (("--token-ids", "3:90", "--dataset", "multi-turn"), "one turn"),
    ],
)
def test_options_that_contradict_each_other_are_refused(arguments: tuple[str, ...], message: str) -> None:
    """Before anything is sent."""
    with pytest.raises(ValueError, match=message):
        make_sessions(parser().parse_args(list(arguments)))


def test_a_dataset_without_times_cannot_be_replayed() -> None:
    """There is nothing to replay."""
    options = parser().parse_args(["--arrivals", "trace", "--count", "2"])

    with pytest.raises(ValueError, match="no arrival times"):
        make_arrivals(options, make_sessions(options))


def test_a_warm_up_shares_no_prompt_with_the_run() -> None:
    """As long as the first request, but nothing of the run is cached by it."""
    options = parser().parse_args(["--dataset", "prefill-heavy", "--count", "3", "--warmup", "2"])
    sessions = make_sessions(options)

    warm_up = make_warm_up(options, sessions)

    prompts = [str(session.turns[0].prompt) for session in (*sessions, *warm_up)]
    assert [len(prompt.split()) for prompt in prompts] == [462] * 5
    assert len({prompt[:40] for prompt in prompts}) == 5
