"""`baton explain`: asks the routers why a request ran where it ran, and shows each term estimated beside measured."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from typing import Annotated

import typer
from google.protobuf.json_format import MessageToJson

from baton.cli.cluster.explanation import print_record
from baton.cli.cluster.router_call import CALL_SECONDS, DEFAULT_ROUTER, ask_router
from baton.cli.terminal.console import make_console
from baton.errors import NotFoundError, UnavailableError
from baton.internal.v1.router_service_pb2 import ExplainRequest, ExplainResponse, PlacementRecord

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
        print(MessageToJson(ExplainResponse(records=records), preserving_proto_field_name=True))
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


def _records(addresses: Sequence[str], request_id: str) -> Sequence[PlacementRecord]:
    """Return what the routers remember, in order of time.

    Raises:
        NotFoundError: If none of them knows the request.
        BatonError: If none knows it, and one did not answer.
    """
    records: list[PlacementRecord] = []
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


def _ask(address: str, request_id: str) -> Sequence[PlacementRecord]:
    """Return what one router remembers; nothing if it does not know the request by any of its names."""
    answer_id = _ANSWER_ID.fullmatch(request_id)
    records = _ask_by_name(address, request_id)
    return records if records or answer_id is None else _ask_by_name(address, answer_id["name"])


def _ask_by_name(address: str, name: str) -> Sequence[PlacementRecord]:
    request = ExplainRequest(request_id=name)
    try:
        return tuple(ask_router(address, lambda stub: stub.Explain(request, timeout=CALL_SECONDS)).records)
    except UnavailableError as error:
        if error.reason != NOT_FOUND:
            raise
        return ()
