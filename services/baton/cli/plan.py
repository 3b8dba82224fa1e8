"""`baton plan`: asks the router what every placement of a request would cost, and prints every term."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from baton.capacity.placement import Candidate
from baton.capacity.placement_table import HEADINGS, format_seconds, plan_rows
from baton.cli.cluster.model_orders import listed
from baton.cli.cluster.router_call import CALL_SECONDS, DEFAULT_ROUTER, RouterOption, ask_router
from baton.cli.terminal.console import make_console
from baton.cli.terminal.tables import format_bytes, print_table
from baton.errors import NotFoundError
from baton.internal.v1 import router_service_pb2
from baton.wire.quantities import candidate_from_proto


def command(
    router: RouterOption = DEFAULT_ROUTER,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of the prompt.")] = 1024,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens to generate.")] = 128,
    model: Annotated[str, typer.Option(help="Served name; default: that of the first node.")] = "",
    is_cluster: Annotated[
        bool, typer.Option("--nodes", help="Which machines should hold which models, and what each does for it.")
    ] = False,
) -> None:
    """Print what every placement of a request would cost now, in seconds, and which the router would take.

    With --nodes: what the router that leads plans for the models that are wanted (`baton models load`), and why.
    """
    if is_cluster:
        print("\n".join(listed(router).plan))
        return
    model = model or _live_nodes(router)[0].node.model_id
    request = router_service_pb2.PlaceRequest(
        request_id=f"plan-{uuid.uuid4()}",
        model_id=model,
        prompt_token_count=prompt_tokens,
        max_token_count=max_tokens,
        is_dry_run=True,
    )
    answer = ask_router(router, lambda stub: stub.Place(request, timeout=CALL_SECONDS))
    console = make_console()
    candidates = [candidate_from_proto(item) for item in answer.candidates]
    print_table(console, plan_table(candidates))
    console.print(
        f"{model}: {prompt_tokens} prompt tokens, at most {max_tokens} new ones, nothing cached. "
        "Total = start + decode + imposed.",
        highlight=False,
    )
    for line in wire_lines(candidates):
        console.print(line, highlight=False)


def wire_lines(candidates: Sequence[Candidate]) -> list[str]:
    """Return in what K and V of the cheapest remote prefill would travel, what that takes, and why."""
    wire = next((candidate.wire for candidate in candidates if candidate.wire), None)
    if wire is None:
        return []
    parts = [
        f"{name} {dtype}, {format_bytes(num_bytes)}, {format_seconds(seconds)}"
        for name, dtype, num_bytes, seconds in (
            ("K", wire.key_dtype, wire.key_bytes, wire.key_seconds),
            ("V", wire.value_dtype, wire.value_bytes, wire.value_seconds),
            ("states", "float32", wire.state_bytes, wire.state_seconds),
        )
        if num_bytes or name != "states"
    ]
    loss = f", expected loss {wire.loss:.2g} nats" if wire.loss else ""
    return [f"On the wire: {'; '.join(parts)}{loss}: {wire.reason}."]


def plan_table(candidates: Sequence[Candidate]) -> Table:
    """Return the candidates, cheapest first, the choice in bold."""
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for index, heading in enumerate(HEADINGS):
        is_text = index < 2 or index == len(HEADINGS) - 1
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=True)
    for row in plan_rows(candidates):
        table.add_row(*row, style="bold green" if row.note.startswith("chosen") else None)
    return table


def _live_nodes(router: str) -> Sequence[router_service_pb2.NodeState]:
    """Return the nodes that the router knows, at least one."""
    answer = ask_router(
        router, lambda stub: stub.ListNodes(router_service_pb2.ListNodesRequest(), timeout=CALL_SECONDS)
    )
    if not answer.nodes:
        raise NotFoundError(f"router at {router} knows no nodes")
    return tuple(answer.nodes)
