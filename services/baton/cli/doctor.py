"""`baton doctor`: measures what a running cluster has to send KV with, and says what will be used and why."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from baton.capacity.kv_transfer import WireOption
from baton.capacity.placement_table import format_seconds
from baton.cli.cluster.advice import advise
from baton.cli.cluster.diagnosis import Diagnosis, NodeFinding, PairFinding, diagnose
from baton.cli.cluster.router_call import DEFAULT_ROUTER, RouterOption, ask_router
from baton.cli.terminal.console import make_console
from baton.cli.terminal.tables import format_bytes, print_table, titled_table
from baton.errors import NotFoundError


def command(
    router: RouterOption = DEFAULT_ROUTER,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of the prompt that is judged by.")] = 1024,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens to generate.")] = 128,
    is_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON document.")] = False,
) -> None:
    """Measure links, copies and wire formats of a running cluster; say what will be used and why.

    Exit status 1 if something does not answer or no pair of nodes can work together.
    """
    diagnosis = ask_router(
        router, lambda stub: diagnose(stub, router, num_prompt_tokens=prompt_tokens, max_tokens=max_tokens)
    )
    if diagnosis is None:
        raise NotFoundError(f"router at {router} knows no nodes: start some with `baton up` or `baton serve`")
    if is_json:
        print(as_json(diagnosis))
    else:
        _print(diagnosis)
    if not diagnosis.is_healthy:
        raise typer.Exit(1)


def as_json(diagnosis: Diagnosis) -> str:
    """Return everything that was found, with the sentences; what was not measured is null."""
    document = asdict(diagnosis) | {"is_healthy": diagnosis.is_healthy, "advice": advise(diagnosis)}
    return json.dumps(_finite(document))


def nodes_table(nodes: tuple[NodeFinding, ...]) -> Table:
    """Return one row per node, as it looks from here."""
    table = titled_table("nodes, from here", "node", "role", "address", "answers", "fast path", "rate", "round trip")
    for node in nodes:
        table.add_row(
            node.node_id,
            node.role,
            node.address,
            "yes" if node.is_serving else "to nodes" if node.is_reached_by_nodes else "no",
            "-" if not node.fast_address else "reachable" if node.is_fast_reachable else "unreachable",
            f"{format_bytes(node.bytes_per_second)}/s" if node.bytes_per_second else "-",
            format_seconds(node.round_trip_seconds) if node.round_trip_seconds else "-",
        )
    return table


def wires_table(pairs: tuple[PairFinding, ...]) -> Table:
    """Return one row per format that a pair can use: bytes, cost and loss, as nodes measured them at start."""
    headings = ("from", "to", "format", "bytes a token", "packing", "loss of K", "loss of V", "used for")
    table = titled_table("wire formats", *headings)
    for pair in pairs:
        wire = pair.remote.wire if pair.remote else None
        for option in pair.options:
            uses = [
                name
                for name, dtype in (("K", wire and wire.key_dtype), ("V", wire and wire.value_dtype))
                if dtype == option.dtype
            ]
            table.add_row(
                pair.prefill_node_id,
                pair.decode_node_id,
                option.dtype,
                str(option.key_bytes + option.value_bytes),
                _packing(option, pair.options[0]),
                _loss(option.key_loss),
                _loss(option.value_loss),
                " and ".join(uses) or "-",
            )
    return table


def _print(diagnosis: Diagnosis) -> None:
    console = make_console()
    print_table(console, nodes_table(diagnosis.nodes))
    if diagnosis.pairs:
        print_table(console, wires_table(diagnosis.pairs))
    console.print(
        f"This machine copies {format_bytes(diagnosis.copy_bytes_per_second)}/s and checksums "
        f"{format_bytes(diagnosis.checksum_bytes_per_second)}/s in one thread.",
        highlight=False,
    )
    for sentence in advise(diagnosis):
        console.print(sentence, highlight=False)


def _packing(option: WireOption, own: WireOption) -> str:
    """Return the time to pack or unpack a GB of cache, whichever node needs longer."""
    seconds = option.key_pack_seconds + option.value_pack_seconds
    return f"{seconds / (own.key_bytes + own.value_bytes) * 1e9:.2g} s/GB" if seconds else "-"


def _loss(nats: float) -> str:
    if nats == 0:
        return "0"
    return f"{nats:.1e} nats" if math.isfinite(nats) else "unknown"


def _finite(value: object) -> object:
    """Return JSON's values alone: what is infinite, because nobody measured it, is null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
