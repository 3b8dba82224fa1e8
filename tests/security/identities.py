"""Certificates of a deployment for tests."""

from __future__ import annotations

from pathlib import Path

import trustme

from baton.security.tls import TlsIdentity


def identity(
    folder: Path, authority: trustme.CA, *, name: str = "baton", common_name: str | None = None, health_port: int = 0
) -> TlsIdentity:
    """Write a certificate of an authority and return who holds it.

    Args:
        folder: Where its files are.
        authority: Signs it.
        name: That of servers.
        common_name: That of the process; None: it has none of its own.
        health_port: See `TlsIdentity`.
    """
    folder.mkdir(exist_ok=True, parents=True)
    certificate = authority.issue_cert(name, common_name=common_name)
    (folder / "tls.crt").write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    (folder / "tls.key").write_bytes(certificate.private_key_pem.bytes())
    (folder / "ca.crt").write_bytes(authority.cert_pem.bytes())
    return TlsIdentity(folder / "tls.crt", folder / "tls.key", folder / "ca.crt", "baton", health_port)
