"""Mutual TLS between Baton's processes: who this process is, and whom it believes.

All certificates of a deployment are signed by one authority of its own and bear one name, because nodes are reached
by addresses that no certificate could list. Who holds such a certificate belongs to the deployment; nobody else can
connect, or be connected to.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

import grpc
from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from baton.errors import ConfigurationError
from baton.security.exposure import ExposureSettings, is_loopback

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """Files of a process, in PEM format; read again for every connection that a server takes and a channel opens.

    What is made of them raises ConfigurationError if one cannot be read or holds something else.
    """

    cert_file: Path
    """Its certificate, with those of intermediate authorities."""
    key_file: Path
    """The key of that."""
    ca_file: Path
    """Certificates of the authorities that are believed."""
    server_name: str
    """Name that every server's certificate bears."""
    health_port: int = 0
    """Port on which health is served without TLS; 0: none."""
    lan_file: Path | None = None
    """Of `baton up`: once this file has the machine's address, servers listen there too, by TLS; on loopback, where
    they listen from the start, connections have none. None: all connections have TLS."""

    def lan_host(self) -> str:
        """Return the address where servers listen beyond loopback; empty: they do not, or there is no such file."""
        try:
            return self.lan_file.read_text("ascii") if self.lan_file else ""
        except OSError:
            return ""

    async def opened(self) -> str:
        """Return that address, as soon as there is one."""
        while not (host := self.lan_host()):  # another process writes it  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)
        return host

    def stamp(self) -> tuple[int, ...]:
        """Return what changes whenever a file of the certificate is replaced."""
        files = (self.cert_file, self.key_file, self.ca_file)
        return tuple(path.stat().st_mtime_ns for path in files if path.is_file())

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Return what a channel shows and believes."""
        certificate, key, authorities = self._read()
        return grpc.ssl_channel_credentials(authorities, key, certificate)

    def server_credentials(self, *, demands_certificate: bool = True) -> grpc.ServerCredentials:
        """Return what a server shows and believes; files that change are taken."""
        initial = self._server_configuration()
        return grpc.dynamic_ssl_server_credentials(
            initial,
            self._fetch,  # type: ignore[arg-type] # None, which gRPC documents, is missing in its types
            require_client_authentication=demands_certificate,
        )

    def server_context(self) -> ssl.SSLContext:
        """Return what a server on plain sockets shows and believes: clients must show a certificate."""
        return self._context(ssl.PROTOCOL_TLS_SERVER)

    def client_context(self) -> ssl.SSLContext:
        """Return what a client on plain sockets shows and believes."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the authority may be signed by another, as gRPC has it
        try:
            context.load_cert_chain(self.cert_file, self.key_file)
            context.load_verify_locations(self.ca_file)
        except OSError as error:  # ssl's own error is one
            raise ConfigurationError(f"tls: {error}") from error
        return context

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the files as they are; called by gRPC for every connection. None: as before."""
        try:
            return self._server_configuration()
        except ConfigurationError as error:
            log.warning("tls_files_kept cause=%s", error.message)
            return None

    def _server_configuration(self) -> grpc.ServerCertificateConfiguration:
        certificate, key, authorities = self._read()
        return grpc.ssl_server_certificate_configuration([(key, certificate)], authorities)

    def _read(self) -> tuple[bytes, bytes, bytes]:
        try:
            return self.cert_file.read_bytes(), self.key_file.read_bytes(), self.ca_file.read_bytes()
        except OSError as error:
            raise ConfigurationError(f"tls: {error}") from error


class PublicCertificate:
    """What a port shows to the public; files that change are taken for connections that come later.

    `cert_file`: certificate, with those of intermediate authorities, PEM. `key_file`: key of that, PEM.
    `client_ca_file`: authorities of which clients must show a certificate, PEM; None: they need show none. `door`:
    "https" or "grpc", which the names of the settings begin with. Raises ConfigurationError if they cannot be read or
    do not belong together.
    """

    def __init__(
        self, cert_file: Path, key_file: Path, client_ca_file: Path | None = None, door: str = "https"
    ) -> None:
        self._files = (cert_file, key_file)
        self._client_ca_file = client_ca_file
        self._door = door
        self._current = self._load()
        self.context = self._load()
        """Of a server of HTTP; each handshake goes on with the files as they are then."""
        self._stamps = self._look()
        self.context.sni_callback = self._show  # called for every handshake, whether it names a server or not

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return the same for a server of gRPC."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(),
            lambda: self._configuration() if self._renew() else None,  # type: ignore[arg-type,return-value] # see above
            require_client_authentication=self._client_ca_file is not None,
        )

    def _show(self, connection: ssl.SSLObject, _server_name: str | None, _context: ssl.SSLContext) -> None:
        self._renew()
        connection.context = self._current

    def _renew(self) -> bool:
        """Take the files if they have changed and can be used; return whether they were taken."""
        try:
            if (stamps := self._look()) == self._stamps:
                return False
            self._current, self._stamps = self._load(), stamps
        except (OSError, ConfigurationError) as error:
            log.warning("tls_files_kept cause=%r", str(error))
            return False
        return True

    def _look(self) -> list[tuple[int, int]]:
        files = (*self._files, self._client_ca_file)
        return [(status.st_mtime_ns, status.st_ino) for status in (path.stat() for path in files if path)]

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(*self._files, password="")
        except OSError as error:  # ssl's own error is one
            names = "{0}_cert_file {1}, {0}_key_file {2}".format(self._door, *self._files)
            raise ConfigurationError(f"{names}: {error}") from error
        if self._client_ca_file is not None:
            try:
                context.load_verify_locations(self._client_ca_file)
            except OSError as error:
                raise ConfigurationError(f"client_ca_file {self._client_ca_file}: {error}") from error
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        certificate, key = (path.read_bytes() for path in self._files)
        authorities = self._client_ca_file.read_bytes() if self._client_ca_file else None
        return grpc.ssl_server_certificate_configuration([(key, certificate)], authorities)


class TlsSettings(BaseSettings):
    """Settings of services that call others: all three files, or none for connections without TLS."""

    model_config = SettingsConfigDict(use_attribute_docstrings=True)

    group: ClassVar[str] = "TLS"

    tls_cert_file: Path | None = None
    """This process's certificate, PEM; servers demand one of every caller."""
    tls_key_file: Path | None = None
    """Key of the certificate, PEM."""
    tls_ca_file: Path | None = None
    """Certificates of the authorities that peers' certificates must come from, PEM."""
    tls_server_name: str = Field(default="baton", min_length=1)
    """Name that every server's certificate bears, whatever its address."""
    tls_lan_dir: Path | None = None
    """Folder of `baton up`, which opens to other machines once there is a file `address` in it; loopback stays without
    TLS, and all else has it, by the files ca.crt, tls.crt and tls.key that are there by then."""
    tls_enrol_address: str = ""
    """For pods: host:port where routers sign this process's certificate, which it writes to tls_cert_file and
    tls_key_file and renews, for the token of its service account. Empty: both files are there."""
    tls_enrol_token_file: Path | None = None
    """Token of the pod's service account for the audience `baton`, which is shown there."""

    @property
    def is_enrolling(self) -> bool:
        """Return whether this process writes tls_cert_file and tls_key_file itself."""
        return bool(self.tls_enrol_address)

    @model_validator(mode="after")
    def _check_all_or_none(self) -> Self:
        files = {name: getattr(self, name) for name in ("tls_cert_file", "tls_key_file", "tls_ca_file")}
        missing = [name for name, path in files.items() if path is None]
        if missing and (self.is_enrolling or len(missing) < len(files)):
            raise ValueError(f"{', '.join(missing)} missing: TLS needs certificate, key and authorities")
        if bool(self.tls_enrol_address) != bool(self.tls_enrol_token_file):
            raise ValueError("tls_enrol_address, tls_enrol_token_file: each needs the other")
        given = ("tls_ca_file",) if self.is_enrolling else tuple(files)
        files = {name: files[name] for name in given}
        unreadable = [f"{name}: no file {path}" for name, path in files.items() if path and not path.is_file()]
        if unreadable:
            raise ValueError("; ".join(unreadable))
        return self

    def tls_identity(self) -> TlsIdentity | None:
        """Return who this process is; None: connections have no TLS."""
        if (folder := self.tls_lan_dir) is not None:
            files = (folder / "tls.crt", folder / "tls.key", folder / "ca.crt")
            return TlsIdentity(*files, self.tls_server_name, lan_file=folder / "address")
        if self.tls_cert_file is None or self.tls_key_file is None or self.tls_ca_file is None:
            return None
        return TlsIdentity(self.tls_cert_file, self.tls_key_file, self.tls_ca_file, self.tls_server_name)


class ServerTlsSettings(TlsSettings, ExposureSettings):
    """Settings of services that are called by others of the deployment; a class that has them has a `host`, too."""

    group: ClassVar[str] = "TLS"

    tls_health_port: int = Field(default=0, ge=0, le=65535)
    """With TLS: port on which health is served without it, for probes that show no certificate; 0: none."""

    def tls_identity(self) -> TlsIdentity | None:
        """Return who this process is, and where it serves health without TLS; None: connections have no TLS."""
        identity = super().tls_identity()
        return identity and replace(identity, health_port=self.tls_health_port)

    def exposures(self) -> Sequence[str]:
        """Return that other machines are served without a certificate, if they are."""
        host = str(getattr(self, "host", ""))
        if is_loopback(host) or self.tls_cert_file is not None:
            return ()
        remedy = "set tls_cert_file, tls_key_file and tls_ca_file (`baton authority create` makes them)"
        problem = "whoever reaches it from another machine would be believed without a certificate"
        return (f"host {host}: {problem}: {remedy}",)


_CURRENT: ContextVar[TlsIdentity | None] = ContextVar("baton_tls_identity", default=None)


@contextmanager
def secured_by(identity: TlsIdentity | None) -> Iterator[None]:
    """Make all servers and channels that are made within the context, and by tasks begun in it, use an identity."""
    token = _CURRENT.set(identity)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_identity() -> TlsIdentity | None:
    """Return the identity of the context; None: no TLS."""
    return _CURRENT.get()


def identity_towards(address: str) -> TlsIdentity | None:
    """Return the identity of the context for connections to host:port; None: no TLS."""
    identity = _CURRENT.get()
    is_spared = identity and identity.lan_file and is_loopback(address.rpartition(":")[0])
    return None if is_spared else identity
