"""What `baton explain` prints."""

from __future__ import annotations

import io

import pytest
from google.protobuf.duration_pb2 import Duration
from rich.console import Console

from baton.cli.explain import print_record, terms_table
from baton.internal.v1 import router_service_pb2 as messages
from baton.v1.generation_pb2 import PlacementSummary

_NARROW = 80


def _estimate(**terms: float) -> messages.CostEstimate:
    seconds = {"prefill_seconds": 1.0, "start_seconds": 1.0, "step_seconds": 0.01} | terms
    total_seconds = seconds["start_seconds"] + 11 * seconds["step_seconds"]
    return messages.CostEstimate(**seconds, expected_output_token_count=11, total_seconds=total_seconds)


def _record(**changed: object) -> messages.PlacementRecord:
    fields: dict[str, object] = {
        "request_id": "abc.0123abcd",
        "placement_id": "p1",
        "model_id": "llama",
        "prompt_token_count": 2000,
        "max_token_count": 32,
        "candidate_count": 3,
        "choice": messages.Candidate(decode_node_id="decode-1", prefill_node_id="prefill-1", estimate=_estimate()),
        "others": [
            messages.Candidate(decode_node_id="decode-1", estimate=_estimate(prefill_seconds=5.0, start_seconds=5.0)),
            messages.Candidate(decode_node_id="decode-2", prefill_node_id="prefill-1", estimate=_estimate()),
        ],
        "nodes": [messages.KnownNode(node_id="decode-1", running_request_count=3, decode_calibration=1.1)],
        "link": messages.KnownLink(from_node_id="prefill-1", to_node_id="decode-1", bytes_per_second=1.25e9),
        "terms": [
            messages.TermComparison(term="queue", estimated_seconds=0.0, measured_seconds=0.9),
            messages.TermComparison(term="prefill", estimated_seconds=1.0, measured_seconds=1.2),
            messages.TermComparison(term="total", estimated_seconds=1.1, measured_seconds=2.2),
        ],
        "outcome": PlacementSummary(completion_token_count=11, queue_duration=Duration(nanos=900_000_000)),
        "regret_seconds": 0.5,
    }
    return messages.PlacementRecord(**(fields | changed))  # type: ignore[arg-type]


def _printed(*records: messages.PlacementRecord) -> list[str]:
    stream = io.StringIO()
    console = Console(file=stream, width=_NARROW)
    for index, record in enumerate(records):
        print_record(console, record, index=index, records=records)
    return stream.getvalue().splitlines()


def test_a_record_fits_a_narrow_terminal() -> None:
    """As a table of terms, not as a paragraph for each."""
    rows = [
        messages.TermComparison(term=term, estimated_seconds=12.34567, measured_seconds=0.1234567)
        for term in ("pull", "restore", "transfer", "exposed", "start", "step", "decode")
    ]
    pull = messages.Candidate(
        decode_node_id="decode-mock",
        pull_node_id="prefill-mock",
        pulled_token_count=2000,
        estimate=_estimate(prefill_seconds=1.123, pull_seconds=0.1234, start_seconds=1.2464),
    )
    lines = _printed(_record(terms=[*_record().terms, *rows], others=[pull]))

    assert max(map(len, lines)) <= _NARROW
    assert any(line.split()[:2] == ["would", "have"] for line in lines)
    assert "Chosen: prefill-1 > decode-1; the cheapest of 3 candidates. Expected: 1.11 s" in lines
    assert any(line.split()[:4] == ["term", "estimated", "measured", "ratio"] for line in lines)
    assert any(line.split()[:6] == ["prefill", "1", "s", "1.2", "s", "1.20"] for line in lines)
    assert any(line.split()[:5] == ["queue", "0", "900", "ms", "-"] for line in lines)


def test_a_record_says_why_in_words() -> None:
    """What lost and by which term, what was off, what was known."""
    text = "\n".join(_printed(_record()))

    assert "Chosen: prefill-1 > decode-1; the cheapest of 3 candidates." in text
    assert "Furthest off: queue took 900 ms longer than estimated." in text
    assert "Regret: 500 ms beyond the next best's estimate." in text
    assert "decode-1 alone 5.11 s 4 s prefill +4 s" in " ".join(text.split())
    assert "prefill-1 > decode-2 1.11 s 0 no term" in " ".join(text.split())
    assert "Known of decode-1: 3 running" in text
    assert "steps corrected by 1.10" in " ".join(text.split())
    assert "1.25 GB/s (declared, nobody has measured it)" in " ".join(text.split())


def test_attempts_tell_how_the_request_went_on() -> None:
    """The first has no outcome, for its node was lost; the second is without that node."""
    first = _record(outcome=None, regret_seconds=None)
    second = _record(excluded_node_ids=["decode-1"], incomparable_reason="1 KV streams broke", regret_seconds=None)
    lines = _printed(first, second)

    text = "\n".join(lines)
    assert text.index("decision 1 of 2") < text.index("The attempt failed on decode-1") < text.index("decision 2 of 2")
    assert "Without decode-1: an earlier attempt failed there." in lines
    assert "Not as placed: 1 KV streams broke." in lines


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"choice": None, "refusal": "no node can take it"}, "Refused: no node can take it."),
        ({"outcome": None}, "No outcome: it runs, or was cancelled, or its node was lost."),
        ({"infeasible_reasons": ["decode-2: draining"]}, "Not possible: decode-2: draining."),
    ],
)
def test_what_has_no_outcome_says_so(changed: dict[str, object], words: str) -> None:
    """And what was not possible says why."""
    unset = {"terms": [], "others": []} if "choice" in changed else {}

    assert words in _printed(_record(**(changed | unset)))


@pytest.mark.parametrize(
    ("uncertainty_seconds", "words"),
    [
        (0.5, "equal to the cheapest of 3 candidates, for estimates are known to 500 ms only"),
        (0.1, "not the cheapest of 3 candidates: a policy or the objectives say so"),
    ],
)
def test_a_choice_that_is_not_the_cheapest_says_why(uncertainty_seconds: float, words: str) -> None:
    """Where it is off by less than estimates are, it counts as equal."""
    estimate = _estimate(start_seconds=1.3, uncertainty_seconds=uncertainty_seconds)
    choice = messages.Candidate(decode_node_id="decode-1", estimate=estimate)
    text = " ".join(" ".join(_printed(_record(choice=choice))).split())

    assert f"Chosen: decode-1 alone; {words}." in text
    assert "prefill-1 > decode-2 1.11 s -300 ms" in text


@pytest.mark.parametrize(
    ("measured_seconds", "shown"), [(0.5, "0.50"), (0.001, "< 0.01"), (400.0, "> 100"), (0.0, "-")]
)
def test_a_ratio_is_as_exact_as_it_is_worth(measured_seconds: float, shown: str) -> None:
    """Far from 1 its digits say nothing."""
    pair = messages.TermComparison(term="queue", estimated_seconds=1.0, measured_seconds=measured_seconds)
    table = terms_table([pair])

    assert list(table.columns[3].cells) == [shown]
