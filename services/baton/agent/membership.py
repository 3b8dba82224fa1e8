"""What a machine keeps of its membership: key, certificate, authorities, and the router's answer, in one folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from google.protobuf.message import DecodeError

from baton.capacity.snapshot import NodeRole
from baton.config.node_tables import WEIGHT_SOURCES
from baton.internal.v1 import join_service_pb2 as messages
from baton.security.authority import create_key, valid_period, write_private
from baton.security.tls import TlsIdentity
from baton.wire.node_roles import role_from_proto


class AssignedWorker(NamedTuple):
    """What the router wants a machine to run."""

    role: NodeRole
    settings: Mapping[str, str]
    weight_sources: Sequence[str] = ()
    """host:port of nodes that have the model."""


class Membership:
    """One machine's files. Only the owner can read them."""

    def __init__(self, folder: Path, server_name: str) -> None:
        self._answer_file = folder / "join.bin"
        self._address_file = folder / "join.address"
        self._flags_file = folder / "join.flags"
        self.token_file = folder / "join.token"
        self.identity = TlsIdentity(folder / "node.crt", folder / "node.key", folder / "ca.crt", server_name)

    def key(self) -> bytes:
        """Return this machine's key, PEM, made at the first call."""
        if not self.identity.key_file.is_file():
            write_private(self.identity.key_file, create_key())
        return self.identity.key_file.read_bytes()

    def keep(self, answer: messages.JoinResponse, asked_address: str) -> None:
        """Keep the answer from host:port; those who open connections from now on show its certificate."""
        write_private(self.identity.ca_file, answer.authorities)
        write_private(self.identity.cert_file, answer.certificate)
        write_private(self._address_file, asked_address.encode("utf-8"))
        write_private(self._answer_file, answer.SerializeToString())

    def kept(self, now: datetime) -> messages.JoinResponse | None:
        """Return the answer kept last, if its certificate is still valid."""
        try:
            answer = messages.JoinResponse.FromString(self._answer_file.read_bytes())
            return answer if now < valid_period(answer.certificate)[1] else None
        except (OSError, DecodeError, ValueError):
            return None

    def certificate(self, now: datetime) -> bytes:
        """Return this machine's certificate, PEM, while it is valid; empty: it has none."""
        kept = self.kept(now)
        return kept.certificate if kept else b""

    def asked_address(self) -> str:
        """Return host:port from which the kept answer came."""
        return self._address_file.read_text("utf-8")

    @property
    def has_joined(self) -> bool:
        """Return whether this machine belongs to a deployment."""
        return self._answer_file.is_file()

    def keep_token(self, text: str) -> Path:
        """Keep a join token; return its file."""
        write_private(self.token_file, text.encode("ascii"))
        return self.token_file

    @property
    def flags(self) -> Sequence[str]:
        """Return the flags of the agent that goes on with this membership; none are kept where a code brought none."""
        return self._flags_file.read_text("utf-8").split("\0") if self._flags_file.is_file() else ()

    def keep_flags(self, flags: Sequence[str]) -> None:
        """Keep them."""
        write_private(self._flags_file, "\0".join(flags).encode("utf-8"))

    def forget(self) -> None:
        """Remove what is kept: without its key this machine is no member any more."""
        identity = self.identity
        own = (self._answer_file, self._address_file, self._flags_file, self.token_file)
        for file in (*own, identity.key_file, identity.cert_file, identity.ca_file):
            file.unlink(missing_ok=True)


def assigned_worker(answer: messages.JoinResponse, asked_address: str) -> AssignedWorker:
    """Return what to run, with the addresses of router and cache index among the settings.

    The host of `asked_address`, host:port of the join service, stands in where the answer names a port alone. Raises
    InvalidFieldError if the answer names a role that this version does not know.
    """
    host = asked_address.rpartition(":")[0]

    def whole(address: str) -> str:
        return f"{host}{address}" if address.startswith(":") else address

    role = role_from_proto(answer.worker.role, field="worker.role")
    settings = dict(answer.worker.settings) | {"router_address": whole(answer.router_address)}
    sources = tuple(map(whole, filter(None, settings.pop(WEIGHT_SOURCES, "").split(","))))
    if answer.cache_index_address:
        settings["cache_index_address"] = whole(answer.cache_index_address)
    return AssignedWorker(role, settings, sources)
