"""What a router remembers of its decisions, and what it says of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from google.protobuf.duration_pb2 import Duration

from baton.errors import InvalidFieldError, NotFoundError, OverloadedError, UnavailableError
from baton.internal.v1.router_service_pb2 import ExplainRequest, PlacementRecord, PlaceRequest
from baton.router.admission.control import AdmissionControl, AdmissionLimits, OverloadPolicy
from baton.router.explanation.answer import explain
from baton.router.explanation.decision_log import MAX_FOUND, DecisionLog, DecisionRecord
from baton.router.placer import Placer
from baton.router.state import RouterState, StateLimits
from baton.v1.generation_pb2 import PlacementSummary
from router.samples import DGX, MAC, MODEL, OUTCOME, Clock, busy_report

_NAME = "abc.0123abcd"


def _record(request_id: str, placement_id: str = "") -> DecisionRecord:
    return DecisionRecord(request_id, MODEL, 1, 1, (), placement_id)


class _Router:
    """A state with a pair of nodes and a placer."""

    def __init__(self, *more_prefill_nodes: str, policy: OverloadPolicy = "queue") -> None:
        clock = Clock()
        self.state = RouterState(clock, StateLimits())
        for node in (MAC, DGX, *(replace(DGX, node_id=name) for name in more_prefill_nodes)):
            self.state.register(node)
        self._num_placements = 0
        admission = AdmissionControl(clock, AdmissionLimits(policy)) if policy != "queue" else None
        self._placer = Placer(self.state, None, new_id=self._new_id, admission=admission)

    def place(self, request_id: str = _NAME, **changed: object) -> None:
        fields: dict[str, object] = {
            "request_id": request_id,
            "model_id": MODEL,
            "prompt_token_count": 8192,
            "max_token_count": 32,
        }
        asyncio.run(self._placer.place(PlaceRequest(**(fields | changed))))  # type: ignore[arg-type]

    def fill(self, **changed: object) -> None:
        """Place more than the nodes can take."""
        for number in range(100):
            self.place(f"abc.{number:08x}", **changed)

    def explain(self, request_id: str = "abc") -> list[PlacementRecord]:
        return list(explain(self.state.decisions, ExplainRequest(request_id=request_id)).records)

    def _new_id(self) -> str:
        self._num_placements += 1
        return f"p{self._num_placements}"


@pytest.mark.parametrize("name", ["abc.0123abcd", "abc", "abc.0123abcd-1"])
def test_a_request_is_found_by_the_names_of_client_and_nodes(name: str) -> None:
    """Gateways add a dot, eight hexadecimal digits and, for several choices, a number."""
    log = DecisionLog()
    own = [_record("abc.0123abcd"), _record("abc.0123abcd-1"), _record("abc.99999999")]
    for record in (_record("other.0123abcd"), *own):
        log.add(record)

    assert log.find(name) == [record for record in own if name in (record.request_id, "abc")]
    assert log.find("ab") == log.find("0123abcd") == []


def test_the_oldest_is_forgotten_and_nothing_of_it_is_left() -> None:
    """However often a client uses a name; an outcome that comes too late is left out."""
    log = DecisionLog(max_records=2)
    for number in range(5):
        log.add(_record(f"abc.0000000{number}", f"p{number}"))
    log.settle(replace(OUTCOME, placement_id="p0"))

    assert len(log) == 2
    assert [record.placement_id for record in log.find("abc")] == ["p3", "p4"]
    assert log.find("abc.00000000") == []
    for number in range(5, 7):
        log.add(_record(f"other.0000000{number}"))
    assert log.find("abc") == []


def test_of_a_name_that_is_used_again_and_again_the_latest_are_told() -> None:
    """An answer stays small."""
    log = DecisionLog()
    for number in range(2 * MAX_FOUND):
        log.add(_record("abc", f"p{number}"))

    assert [record.placement_id for record in log.find("abc")][0::31] == ["p32", "p63"]


def test_an_explanation_has_what_was_known_and_what_lost() -> None:
    """The best others, cheapest first; load, link, and an estimate without measurement."""
    router = _Router(*(f"dgx-{number}" for number in range(6)), "zzz")
    draining = router.state.nodes.get("zzz")
    prefiller = router.state.nodes.get("dgx")
    assert draining is not None
    assert prefiller is not None
    router.state.report(draining, replace(busy_report(), is_draining=True))
    router.state.report(prefiller, busy_report(num_pending_prompt_tokens=7000, num_waiting=1))
    router.place(pins=[])
    (record,) = router.explain()

    assert (record.request_id, record.placement_id, record.prompt_token_count) == (_NAME, "p1", 8192)
    assert record.choice.prefill_node_id == "dgx-0"
    assert [other.prefill_node_id for other in record.others] == ["dgx-1", "dgx-2"]
    assert record.candidate_count == 9
    assert list(record.infeasible_reasons) == ["zzz: draining"]
    assert [node.node_id for node in record.nodes] == ["mac", "dgx-0"]
    assert (record.link.from_node_id, record.link.to_node_id, record.link.is_measured) == ("dgx-0", "mac", False)
    assert record.link.bytes_per_second > 0
    assert not record.HasField("outcome")
    terms = {pair.term: pair for pair in record.terms}
    assert terms["prefill"].estimated_seconds == record.choice.estimate.prefill_seconds
    assert not terms["prefill"].HasField("measured_seconds")


def test_a_decision_sees_the_placements_before_it() -> None:
    """What was known is of the moment before it was counted itself."""
    router = _Router()
    router.place("abc.00000001")
    router.place("abc.00000002")
    first, second = router.explain()

    assert [node.waiting_request_count for node in first.nodes] == [0, 0]
    assert second.nodes[0].waiting_request_count == 1


def test_an_outcome_stands_beside_the_estimate() -> None:
    """With the regret against the best other candidate, for the tokens that came."""
    router = _Router()
    router.place()
    router.state.settle(
        replace(
            OUTCOME,
            placement_id="p1",
            prefill_seconds=9.0,
            decode_seconds=1.03,
            num_completion_tokens=11,
            message=PlacementSummary(completion_token_count=11),
        )
    )
    (record,) = router.explain(_NAME)
    terms = {pair.term: pair for pair in record.terms}

    assert terms["prefill"].measured_seconds == 9.0
    assert terms["step"].measured_seconds == pytest.approx(0.1)
    assert terms["total"].measured_seconds == pytest.approx(10.03)
    local = record.others[0].estimate
    assert record.regret_seconds == pytest.approx(10.03 - local.start_seconds - 10 * local.step_seconds)
    assert record.incomparable_reason == ""
    assert record.outcome.completion_token_count == 11


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fallback_reason": "UNAVAILABLE"}, "given up (UNAVAILABLE)"),
        ({"num_preemptions": 2}, "left its batch 2 times"),
        ({"num_breaks": 1}, "its KV stream broke once"),
        ({"prefill_node_id": "dgx-1"}, "dgx-1 computed the prompt in place of dgx"),
        ({"pulled_tokens": 48}, "48 tokens were pulled, not 0"),
        ({"num_completion_tokens": 0}, "it was cut short"),
    ],
)
def test_what_went_another_way_is_shown_with_its_reason_and_without_regret(
    change: dict[str, object], words: str
) -> None:
    """The measured times are there all the same."""
    router = _Router()
    router.place()
    outcome = replace(OUTCOME, placement_id="p1", num_completion_tokens=11)
    router.state.settle(replace(outcome, **change))  # type: ignore[arg-type]
    (record,) = router.explain()

    assert words in record.incomparable_reason
    assert not record.HasField("regret_seconds")
    assert {pair.term: pair.measured_seconds for pair in record.terms}["prefill"] == 1.5


def test_a_refusal_and_the_attempts_of_a_request_are_remembered_in_order() -> None:
    """An attempt that failed has no outcome; the next one names the node."""
    router = _Router()
    router.place()
    with pytest.raises(UnavailableError):
        router.place(excluded_node_ids=["mac"])
    first, second = router.explain()

    assert (first.placement_id, first.refusal) == ("p1", "")
    assert not second.HasField("choice")
    assert "mac: excluded by the request" in second.refusal
    assert (list(second.excluded_node_ids), list(second.terms)) == (["mac"], [])


def test_a_request_that_is_shed_is_remembered_with_what_would_have_been() -> None:
    """Nothing was chosen, and no node counts it."""
    router = _Router(policy="shed")
    with pytest.raises(OverloadedError) as caught:
        router.fill(ttft_objective=Duration(seconds=3))
    placed, record = router.explain()[-2:]

    assert (placed.placement_id, placed.refusal) != ("", caught.value.message)
    assert record.refusal == caught.value.message
    assert not record.HasField("choice")
    assert record.placement_id == ""
    assert {other.prefill_node_id for other in record.others} == {"dgx", ""}


def test_plans_are_not_remembered() -> None:
    """Nobody's request they are."""
    router = _Router()
    router.place(is_dry_run=True)

    assert len(router.state.decisions) == 0


def test_an_unknown_request_is_not_found() -> None:
    """The message says how much is remembered; a name that is none is refused by its field."""
    router = _Router()

    with pytest.raises(NotFoundError, match=r"'abc'.*4096") as caught:
        router.explain()
    assert caught.value.reason == "REQUEST_NOT_FOUND"
    with pytest.raises(InvalidFieldError, match="request_id"):
        router.explain("")
