"""Settings of the router about machines that join by a token."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from baton.rpc.tls import ServerTlsSettings


class JoinSettings(ServerTlsSettings):
    """Part of the router's settings. Off unless `join_port` is set; then TLS and all three files are needed."""

    model_config = SettingsConfigDict(use_attribute_docstrings=True)

    join_port: int = Field(default=0, ge=0, le=65535)
    """Port on which machines join by a token (`baton agent`); 0: none can. Needs TLS."""
    join_secret_file: Path | None = None
    """Holds the secret of the join token, 32 characters or more (`baton authority create` makes one)."""
    join_authority_key_file: Path | None = None
    """Key of the first certificate in tls_ca_file, PEM: signs the certificates of machines that join."""
    join_assignments_file: Path | None = None
    """TOML file with a `[[node]]` table for each kind of machine: what it runs. Read again for every one that joins."""
    join_certificate_days: float = Field(default=30.0, gt=0, le=3650)
    """Validity of a joined machine's certificate; the agent renews it after two thirds."""
    join_router_address: str = ""
    """host:port of this router as joined machines reach it; empty: the host that they asked, this router's port."""
    join_cache_index_address: str = ""
    """The same of the cache index; empty: the host that they asked, the cache index's port."""
    announce_address: str = ""
    """IPv4 address of this machine on whose network multicast DNS announces the join service; empty: nothing does."""

    @model_validator(mode="after")
    def _check_join(self) -> Self:
        needed = {
            name: getattr(self, name)
            for name in ("join_secret_file", "join_authority_key_file", "join_assignments_file")
        }
        if self.announce_address and not self.join_port:
            raise ValueError("announce_address: there is nothing to announce without join_port")
        if not self.join_port:
            given = [name for name, path in needed.items() if path is not None]
            if given:
                raise ValueError(f"{', '.join(given)}: without effect unless join_port is set")
            return self
        if self.tls_ca_file is None:
            raise ValueError("join_port: needs TLS (tls_cert_file, tls_key_file, tls_ca_file)")
        missing = [name for name, path in needed.items() if path is None]
        unreadable = [f"{name}: no file {path}" for name, path in needed.items() if path and not path.is_file()]
        if missing or unreadable:
            raise ValueError("; ".join([*(f"{name}: needed with join_port" for name in missing), *unreadable]))
        return self
