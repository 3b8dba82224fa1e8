"""What is remembered of a request as an answer to those who ask why: PlacementRecord of router_service.proto."""

from __future__ import annotations

from baton.capacity.cost import expected_seconds
from baton.capacity.placement_table import compare_terms
from baton.errors import InvalidFieldError, NotFoundError
from baton.internal.v1 import router_service_pb2
from baton.router.explanation.decision_log import DecisionLog, DecisionRecord, KnownLink, KnownNode
from baton.wire.quantities import candidate_to_proto

NOT_FOUND = "REQUEST_NOT_FOUND"
"""Reason of the error for a request that is not remembered."""


def explain(log: DecisionLog, request: router_service_pb2.ExplainRequest) -> router_service_pb2.ExplainResponse:
    """Return the decisions about a request; raise InvalidFieldError, or NotFoundError if there are none."""
    if not 1 <= len(request.request_id) <= 128:
        raise InvalidFieldError("request_id", "must have 1 to 128 characters")
    records = log.find(request.request_id)
    if not records:
        raise NotFoundError(
            f"no request {request.request_id!r} is known: it was not placed here, or is not among the last "
            f"{log.max_records} decisions any more",
            reason=NOT_FOUND,
        )
    return router_service_pb2.ExplainResponse(records=[_record(record) for record in records])


def incomparable_reason(record: DecisionRecord) -> str:
    """Return what happened in place of what was placed, so that the outcome is no measure of the estimate; or empty."""
    choice, outcome = record.choice, record.outcome
    if choice is None or outcome is None:
        return ""
    if outcome.fallback_reason:
        return f"the remote prefill was given up ({outcome.fallback_reason}): the decode node computed the prompt"
    if outcome.num_preemptions:
        return f"the request left its batch {_times(outcome.num_preemptions)} for want of memory"
    if outcome.num_breaks:
        return f"its KV stream broke {_times(outcome.num_breaks)}: the times are those of the repair"
    planned = choice.prefill_node_id or choice.decode_node_id
    if outcome.prefill_node_id and outcome.prefill_node_id != planned:
        return f"{outcome.prefill_node_id} computed the prompt in place of {planned}"
    if outcome.pulled_tokens != choice.pulled_tokens:
        return f"{outcome.pulled_tokens} tokens were pulled, not {choice.pulled_tokens}"
    if not outcome.num_completion_tokens:
        return "it was cut short: by a stop string, by its client or by an error"
    return ""


def regret_seconds(record: DecisionRecord) -> float | None:
    """Return the time beyond what the best other candidate was expected to take; None: not comparable."""
    outcome, other = record.outcome, record.runner_up
    if outcome is None or other is None or incomparable_reason(record):
        return None
    return max(0.0, outcome.total_seconds - expected_seconds(other, outcome.num_completion_tokens))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _record(record: DecisionRecord) -> router_service_pb2.PlacementRecord:
    choice, outcome = record.choice, record.outcome
    measured = outcome.terms if outcome else None
    num_tokens = outcome.num_completion_tokens if outcome else 0
    message = router_service_pb2.PlacementRecord(
        request_id=record.request_id,
        placement_id=record.placement_id,
        model_id=record.model_id,
        prompt_token_count=record.num_prompt_tokens,
        max_token_count=record.max_tokens,
        excluded_node_ids=record.excluded_node_ids,
        choice=candidate_to_proto(choice) if choice else None,
        refusal=record.refusal,
        others=[candidate_to_proto(other) for other in record.others],
        candidate_count=record.num_candidates,
        infeasible_reasons=record.infeasible_reasons,
        nodes=[_node(node) for node in record.nodes],
        link=_link(record.link) if record.link else None,
        outcome=outcome.message if outcome else None,
        terms=[
            router_service_pb2.TermComparison(**pair._asdict())
            for pair in compare_terms(choice.estimate if choice else None, measured, num_tokens)
        ]
        if choice
        else (),
        regret_seconds=regret_seconds(record),
        incomparable_reason=incomparable_reason(record),
        degraded_max_token_count=record.degraded_max_tokens,
    )
    message.decided_at.FromNanoseconds(round(record.decided_at * 1e9))
    return message


def _node(node: KnownNode) -> router_service_pb2.KnownNode:
    return router_service_pb2.KnownNode(
        node_id=node.node_id,
        running_request_count=node.load.num_running,
        waiting_request_count=node.load.num_waiting,
        pending_prompt_token_count=node.load.num_pending_prompt_tokens,
        free_block_count=max(0, node.load.num_free_blocks),
        report_age_seconds=node.report_age_seconds,
        prefill_calibration=node.prefill_calibration,
        decode_calibration=node.decode_calibration,
    )


def _link(known: KnownLink) -> router_service_pb2.KnownLink:
    return router_service_pb2.KnownLink(
        from_node_id=known.from_node_id,
        to_node_id=known.to_node_id,
        bytes_per_second=known.link.bytes_per_second,
        round_trip_seconds=known.link.round_trip_seconds,
        is_measured=known.link.is_measured,
        calibration=known.calibration,
    )
