"""`baton explain`: asks the routers why a request ran where it ran, and shows each term estimated beside measured."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from textwrap import wrap
from typing import Annotated

import typer
from google.protobuf.json_format import MessageToJson
from rich import box
from rich.console import Console
from rich.table import Table

from baton.capacity.cost import CostEstimate
from baton.capacity.placement import Candidate
from baton.capacity.placement_table import format_seconds
from baton.cli.cluster.router_call import CALL_SECONDS, DEFAULT_ROUTER, ask_router
from baton.cli.terminal.console import make_console
from baton.cli.terminal.tables import format_bytes, print_table
from baton.errors import NotFoundError, UnavailableError
from baton.internal.v1 import router_service_pb2
from baton.wire.quantities import candidate_from_proto, estimate_from_proto

NOT_FOUND = "REQUEST_NOT_FOUND"
"""Reason of a router that does not know the request."""
_ANSWER_ID = re.compile(r"(?:chatcmpl-|cmpl-|msg_|resp_)(?P<name>.+)")
"""Ids of answers, which begin with what the API calls an answer."""


def command(
    request_id: Annotated[
        str, typer.Argument(metavar="REQUEST_ID", help="As in the header x-request-id, in an answer's id or in logs.")
    ],
    router: Annotated[
        list[str] | None,
        typer.Option(
            "--router",
            help="host:port of it; may be repeated, or a name of several: all are asked.",
            envvar="BATON_ROUTER_ADDRESS",
        ),
    ] = None,
    is_json: Annotated[bool, typer.Option("--json", help="Print all that is remembered as JSON.")] = False,
) -> None:
    """Print why a request ran where it ran: each term estimated and measured, and what would have been dearer.

    Routers remember their last 4096 decisions.
    """
    names = [name for text in router or [DEFAULT_ROUTER] for name in text.split(",") if name]
    addresses = [address for name in names for address in _resolved(name)]
    records = _records(addresses, request_id)
    if is_json:
        print(MessageToJson(router_service_pb2.ExplainResponse(records=records), preserving_proto_field_name=True))
        return
    console = make_console()
    for index, record in enumerate(records):
        print_record(console, record, index=index, records=records)


def _resolved(address: str) -> Sequence[str]:
    """Return the address of every machine that a host name stands for; itself if that is one, or unknown."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except OSError:
        return [address]
    hosts = sorted({str(each[4][0]) for each in found if each[0] == found[0][0]})
    return [f"[{each}]:{port}" if ":" in each else f"{each}:{port}" for each in hosts] if len(hosts) > 1 else [address]


def _records(addresses: Sequence[str], request_id: str) -> Sequence[router_service_pb2.PlacementRecord]:
    """Return what routers remember, by time; raise NotFoundError if none knows it, BatonError if one is silent."""
    records: list[router_service_pb2.PlacementRecord] = []
    failure: UnavailableError | None = None
    for address in addresses:
        try:
            records += _ask(address, request_id)
        except UnavailableError as error:
            failure = error
    if not records and failure is not None:
        raise failure
    if not records:
        raise NotFoundError(
            f"request {request_id!r}: not known to the router at {', '.join(addresses)}. Routers know what they placed "
            "themselves, the last 4096 decisions since they started; with several of them, give each by --router",
            reason=NOT_FOUND,
        )
    return sorted(records, key=lambda record: record.decided_at.ToNanoseconds())


def _ask(address: str, request_id: str) -> Sequence[router_service_pb2.PlacementRecord]:
    """Return what one router remembers; nothing if it does not know the request by any of its names."""
    answer_id = _ANSWER_ID.fullmatch(request_id)
    records = _ask_by_name(address, request_id)
    return records if records or answer_id is None else _ask_by_name(address, answer_id["name"])


def _ask_by_name(address: str, name: str) -> Sequence[router_service_pb2.PlacementRecord]:
    request = router_service_pb2.ExplainRequest(request_id=name)
    try:
        return tuple(ask_router(address, lambda stub: stub.Explain(request, timeout=CALL_SECONDS)).records)
    except UnavailableError as error:
        if error.reason != NOT_FOUND:
            raise
        return ()


_MEANINGS = {
    "queue": "before the prompt's turn",
    "pull": "cached KV from another node",
    "restore": "cached KV from memory or disk",
    "prefill": "the prompt's computation",
    "transfer": "KV on the link",
    "exposed": "what of it was not hidden",
    "join": "the step that ran there",
    "start": "until decoding could begin",
    "step": "one decode step",
    "decode": "all steps",
    "total": "start and decode",
    "imposed": "slow-down of others",
}
_SHARES = ("queue", "pull", "restore", "prefill", "exposed", "join", "decode", "imposed")
"""Terms that candidates differ by; those of them that are measured make up the total."""
_SURPRISE = 0.1
"""Share of the total by which a term must miss its estimate to be named."""


def print_record(
    console: Console,
    record: router_service_pb2.PlacementRecord,
    *,
    index: int,
    records: Sequence[router_service_pb2.PlacementRecord],
) -> None:
    """Print one decision."""
    at = datetime.fromtimestamp(record.decided_at.ToNanoseconds() / 1e9).astimezone()
    number = f" (decision {index + 1} of {len(records)})" if len(records) > 1 else ""
    console.print(f"{record.request_id}{number}, {at:%Y-%m-%d %H:%M:%S}", style="bold", highlight=False)
    _print_lines(console, (*_choice_lines(record), *_outcome_lines(record, records[index + 1 :])))
    if record.terms:
        print_table(console, terms_table(record.terms))
    if record.others:
        print_table(console, others_table(record))
    _print_lines(console, _known_lines(record))
    console.print()


def terms_table(terms: Sequence[router_service_pb2.TermComparison]) -> Table:
    """Return one row per term: estimated, measured, and measured by estimated."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("term", "estimated", "measured", "ratio", ""):
        table.add_column(heading, justify="left" if heading in ("term", "") else "right", no_wrap=True)
    for pair in terms:
        estimated = format_seconds(pair.estimated_seconds) if pair.HasField("estimated_seconds") else "-"
        measured = format_seconds(pair.measured_seconds) if pair.HasField("measured_seconds") else "-"
        ratio = _ratio(pair.measured_seconds, pair.estimated_seconds)
        style = "bold" if pair.term == "total" else None
        table.add_row(pair.term, estimated, measured, ratio, _MEANINGS.get(pair.term, ""), style=style)
    return table


def others_table(record: router_service_pb2.PlacementRecord) -> Table:
    """Return one row per candidate that lost: by how much, and which terms made it dearer."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("would have been", "total", "dearer by", "mostly"):
        is_number = heading in ("total", "dearer by")
        table.add_column(heading, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    best = estimate_from_proto((record.choice if record.HasField("choice") else record.others[0]).estimate)
    for message in record.others:
        candidate = candidate_from_proto(message)
        if candidate.estimate is not None:
            total = candidate.estimate.total_seconds
            gap = total - best.total_seconds
            dearer = f"{'-' if gap < 0 else ''}{format_seconds(abs(gap))}"
            table.add_row(_where(candidate), format_seconds(total), dearer, _mostly(candidate.estimate, best))
    return table


def _print_lines(console: Console, lines: Iterable[str]) -> None:
    """Print sentences, each from the left edge, what does not fit indented."""
    for line in lines:
        for piece in wrap(line, console.width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False):
            console.print(piece, highlight=False, markup=False, soft_wrap=True)


def _choice_lines(record: router_service_pb2.PlacementRecord) -> Iterator[str]:
    size = f"{record.prompt_token_count} prompt tokens, at most {record.max_token_count} new ones"
    yield f"{record.model_id}: {size}."
    if record.excluded_node_ids:
        yield f"Without {', '.join(record.excluded_node_ids)}: an earlier attempt failed there."
    if not record.HasField("choice"):
        yield f"Refused: {record.refusal}."
        return
    if record.degraded_max_token_count:
        yield f"Cut to {record.degraded_max_token_count} new tokens: the nodes are overloaded."
    choice = candidate_from_proto(record.choice)
    own = record.choice.estimate
    expected = f"{format_seconds(own.total_seconds)} with {own.expected_output_token_count:.0f} tokens"
    yield f"Chosen: {_where(choice)}; {_why_chosen(record)}. Expected: {expected}."
    cached = max(choice.decode_cached_tokens, choice.prefill_cached_tokens)
    if cached:
        yield f"Expected in prefix caches: {cached} tokens."
    if record.infeasible_reasons:
        yield f"Not possible: {'; '.join(record.infeasible_reasons)}."


def _why_chosen(record: router_service_pb2.PlacementRecord) -> str:
    """Return what made it the choice; candidates within the uncertainty of the cheapest count as equal."""
    totals = [other.estimate.total_seconds for other in record.others]
    own = record.choice.estimate
    if not totals:
        return "the only way"
    if own.total_seconds <= min(totals):
        return f"the cheapest of {record.candidate_count} candidates"
    saving = own.total_seconds - min(totals)
    if saving <= own.uncertainty_seconds:
        known = format_seconds(own.uncertainty_seconds)
        return f"equal to the cheapest of {record.candidate_count} candidates, for estimates are known to {known} only"
    return f"not the cheapest of {record.candidate_count} candidates: a policy or the objectives say so"


def _outcome_lines(
    record: router_service_pb2.PlacementRecord, later: Sequence[router_service_pb2.PlacementRecord]
) -> Iterator[str]:
    if not record.HasField("choice"):
        return
    if not record.HasField("outcome"):
        again = next((each for each in later if each.request_id == record.request_id), None)
        if again is not None and record.choice.decode_node_id in again.excluded_node_ids:
            yield f"The attempt failed on {record.choice.decode_node_id}; the next decision went on without it."
        else:
            yield "No outcome: it runs, or was cancelled, or its node was lost."
        return
    outcome = record.outcome
    if outcome.kv_break_reasons:
        yield f"KV streams broke: {', '.join(outcome.kv_break_reasons)}."
    if record.incomparable_reason:
        yield f"Not as placed: {record.incomparable_reason}."
    yield from _surprise(record)
    if record.HasField("regret_seconds"):
        regret = record.regret_seconds
        yield f"Regret: {format_seconds(regret)} beyond the next best's estimate." if regret else "Regret: none."


def _surprise(record: router_service_pb2.PlacementRecord) -> Iterator[str]:
    """Yield which term missed its estimate by most, if that is a share of the total worth a word."""
    pairs = {pair.term: pair for pair in record.terms}
    misses = {
        term: pair.measured_seconds - pair.estimated_seconds
        for term, pair in pairs.items()
        if term in _SHARES and pair.HasField("measured_seconds")
    }
    total = pairs["total"].measured_seconds if "total" in pairs else 0.0
    worst = max(misses, key=lambda term: abs(misses[term]), default="")
    if worst and abs(misses[worst]) > _SURPRISE * total:
        word = "longer" if misses[worst] > 0 else "less"
        yield f"Furthest off: {worst} took {format_seconds(abs(misses[worst]))} {word} than estimated."


def _known_lines(record: router_service_pb2.PlacementRecord) -> Iterator[str]:
    yield from (f"Known of {node.node_id}: {_node(node)}." for node in record.nodes)
    if record.HasField("link"):
        yield f"Known of the link {record.link.from_node_id} > {record.link.to_node_id}: {_link(record.link)}."
    wire = record.choice.wire
    if wire.reason:
        formats = wire.key_dtype if wire.key_dtype == wire.value_dtype else f"{wire.key_dtype}/{wire.value_dtype}"
        yield f"On the wire: {formats}, {format_bytes(record.choice.kv_byte_count)}: {wire.reason}."


def _node(node: router_service_pb2.KnownNode) -> str:
    facts = [
        f"{node.running_request_count} running",
        f"{node.waiting_request_count} waiting",
        f"{node.pending_prompt_token_count} prompt tokens to compute",
        f"{node.free_block_count} free blocks",
        f"reported {format_seconds(node.report_age_seconds)} before",
    ]
    learnt = {"prefill": node.prefill_calibration, "steps": node.decode_calibration}
    return ", ".join(facts + [f"{name} corrected by {factor:.2f}" for name, factor in learnt.items() if factor])


def _link(link: router_service_pb2.KnownLink) -> str:
    kind = "measured" if link.is_measured else "declared, nobody has measured it"
    corrected = f", corrected by {link.calibration:.2f}" if link.calibration else ""
    round_trip = format_seconds(link.round_trip_seconds)
    return f"{format_bytes(link.bytes_per_second)}/s ({kind}{corrected}), round trip {round_trip}"


def _where(candidate: Candidate) -> str:
    if candidate.pull_node_id:
        return f"{candidate.decode_node_id} alone, {candidate.pulled_tokens} tokens from {candidate.pull_node_id}"
    if candidate.is_local:
        return f"{candidate.decode_node_id} alone"
    return f"{candidate.prefill_node_id} > {candidate.decode_node_id}"


def _ratio(measured_seconds: float, estimated_seconds: float) -> str:
    if not (measured_seconds > 0 and estimated_seconds > 0):
        return "-"
    ratio = measured_seconds / estimated_seconds
    return f"{ratio:.2f}" if 0.01 <= ratio < 100 else "< 0.01" if ratio < 1 else "> 100"


def _mostly(estimate: CostEstimate, best: CostEstimate) -> str:
    """Return the terms, two at most, that make a candidate dearer than the choice."""
    dearer = {term: getattr(estimate, f"{term}_seconds") - getattr(best, f"{term}_seconds") for term in _SHARES}
    longest = sorted((term for term in dearer if dearer[term] > 0), key=lambda term: -dearer[term])[:2]
    return ", ".join(f"{term} +{format_seconds(dearer[term])}" for term in longest) or "no term"
