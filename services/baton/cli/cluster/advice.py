"""Says in words what `baton doctor` has found: what will be used between two nodes, and why. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from baton.capacity.cost import CostEstimate
from baton.capacity.kv_transfer import WireEstimate, WireOption
from baton.capacity.placement import Candidate
from baton.capacity.placement_table import format_seconds
from baton.cli.cluster.diagnosis import Diagnosis, PairFinding
from baton.cli.terminal.tables import format_bytes

SETTING = "BATON_ROUTER_KV_ALLOWED_LOSS"


def advise(diagnosis: Diagnosis) -> list[str]:
    """Return a few sentences per pair of nodes, and one per problem."""
    found = [("router", diagnosis.router_problem), *((node.node_id, node.problem) for node in diagnosis.nodes)]
    sentences = [f"{name}: {problem}." for name, problem in found if problem]
    for pair in diagnosis.pairs:
        sentences += advise_pair(pair, diagnosis.num_prompt_tokens)
    if not diagnosis.pairs:
        sentences.append(
            "There are no two nodes of which one prefills for the other: every prompt is computed where it decodes."
        )
    return sentences


def advise_pair(pair: PairFinding, num_prompt_tokens: int) -> list[str]:
    """Return what the router would do with a prompt of that length between two nodes, and why."""
    name = f"{pair.prefill_node_id} → {pair.decode_node_id}"
    wire = pair.remote.wire if pair.remote else None
    estimate = pair.remote.estimate if pair.remote else None
    if pair.problem or wire is None or estimate is None:
        return [f"{name}: cannot be used: {pair.problem or 'the router gives no estimate'}."]
    link = (
        f"{format_bytes(pair.bytes_per_second)}/s and {format_seconds(pair.round_trip_seconds)} of round trip, measured"
        if pair.is_measured
        else "a link that nobody has measured yet, so its declared rate counts"
    )
    parts = (
        f"K as {wire.key_dtype} ({format_bytes(wire.key_bytes)})",
        f"V as {wire.value_dtype} ({format_bytes(wire.value_bytes)})",
    )
    carried = f"{name}: {link}. KV of {num_prompt_tokens} tokens: {', '.join(parts)}: {wire.reason}."
    transfer, exposed = format_seconds(estimate.transfer_seconds), format_seconds(estimate.exposed_seconds)
    prefill = format_seconds(estimate.prefill_seconds)
    hidden = f"  The transfer takes {transfer} beside {prefill} of prefill; {exposed} of it show."
    sentences = [carried, hidden]
    if pair.local is not None and pair.local.estimate is not None:
        sentences.append(_winner(estimate, pair.local.estimate))
    if hint := _hint(pair.options, pair.remote, wire):
        sentences.append(hint)
    return sentences


def _winner(remote: CostEstimate, local: CostEstimate) -> str:
    gain = local.total_seconds - remote.total_seconds
    if gain > 0:
        return f"  Remote prefill wins by {format_seconds(gain)} a request, so that is what the router does when idle."
    return f"  Local prefill wins by {format_seconds(-gain)} a request, so nothing is sent."


def _hint(options: Sequence[WireOption], remote: Candidate | None, wire: WireEstimate) -> str:
    """Return what a loss would buy where the link is the bottleneck and nothing is rounded."""
    estimate = remote.estimate if remote else None
    if estimate is None or wire.loss or estimate.transfer_seconds <= estimate.prefill_seconds or len(options) < 2:
        return ""
    own, *narrower = options
    measured = [option for option in narrower if math.isfinite(option.key_loss + option.value_loss)]
    if not measured:
        return "  The link is the bottleneck; no narrower format has a measured loss on this model."
    best = min(
        measured, key=lambda option: (option.key_bytes + option.value_bytes, option.key_loss + option.value_loss)
    )
    saved = 1 - (best.key_bytes + best.value_bytes) / (own.key_bytes + own.value_bytes)
    gain = f"would let KV travel as {best.dtype}: {saved:.0%} fewer bytes"
    return f"  To allow a loss of {best.key_loss + best.value_loss:.1g} nats ({SETTING}) {gain}."
