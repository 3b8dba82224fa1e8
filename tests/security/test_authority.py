"""Authorities, requests and what is signed for them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from baton.errors import ConfigurationError, InvalidFieldError
from baton.security.authority import (
    Authority,
    certificate_request,
    create_authority,
    create_key,
    renew_deployment,
    renewal_seconds,
    valid_period,
    write_private,
)
from baton.security.join_token import read_secret

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def _sign(authority: Authority, request: bytes) -> bytes:
    return authority.sign(request, node_id="mac-1", server_name="baton", now=NOW, lifetime=timedelta(days=30))


def test_what_is_signed_names_the_node_and_the_deployment() -> None:
    """The subject is the node whatever the request says; the name that peers check is the deployment's, or both."""
    authority = create_authority(NOW, timedelta(days=100))

    signed = _sign(authority, certificate_request(create_key(), "somebody-else"))

    certificate, issuer = x509.load_pem_x509_certificate(signed), x509.load_pem_x509_certificate(authority.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert certificate.subject.rfc4514_string() == "CN=mac-1"
    assert names.get_values_for_type(x509.DNSName) == ["baton", "mac-1.baton"]
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    certificate.verify_directly_issued_by(issuer)
    assert valid_period(signed)[1] == NOW + timedelta(days=30)


def test_a_request_that_its_key_has_not_signed_is_refused() -> None:
    """Else a certificate for somebody else's key could be had."""
    authority = create_authority(NOW, timedelta(days=100))
    body = bytearray(x509.load_pem_x509_csr(certificate_request(create_key(), "a")).public_bytes(Encoding.DER))
    body[-1] ^= 1
    broken = x509.load_der_x509_csr(bytes(body)).public_bytes(Encoding.PEM)

    with pytest.raises(InvalidFieldError, match="certificate_request"):
        _sign(authority, broken)
    with pytest.raises(InvalidFieldError, match="certificate_request"):
        _sign(authority, b"no request")


def test_a_key_of_another_authority_is_refused(tmp_path: Path) -> None:
    """What it signed, nobody would believe."""
    mine, other = (create_authority(NOW, timedelta(days=1)) for _ in range(2))
    (tmp_path / "ca.crt").write_bytes(mine.certificate)
    (tmp_path / "ca.key").write_bytes(other.key)

    with pytest.raises(ConfigurationError, match="is not the key of"):
        Authority.read(tmp_path / "ca.crt", tmp_path / "ca.key")
    (tmp_path / "ca.key").write_bytes(mine.key)

    assert Authority.read(tmp_path / "ca.crt", tmp_path / "ca.key") == mine


def test_a_node_is_known_by_a_valid_certificate_of_its_own_from_this_authority() -> None:
    """Whoever is known needs no token: not by another's certificate, key or authority, nor by one that is over."""
    mine, other = (create_authority(NOW, timedelta(days=100)) for _ in range(2))
    key = create_key()
    request, stranger = certificate_request(key, "mac-1"), certificate_request(create_key(), "mac-1")
    certificate, both = _sign(mine, request), Authority(other.certificate + mine.certificate, other.key)
    late = NOW + timedelta(days=31)

    assert mine.knows(certificate, request, node_id="mac-1", now=NOW)
    assert both.knows(certificate, request, node_id="mac-1", now=NOW)
    assert not other.knows(certificate, request, node_id="mac-1", now=NOW)
    assert not mine.knows(certificate, stranger, node_id="mac-1", now=NOW)
    assert not mine.knows(certificate, request, node_id="mac-2", now=NOW)
    assert not mine.knows(certificate, request, node_id="mac-1", now=late)
    assert not mine.knows(b"no certificate", request, node_id="mac-1", now=NOW)


def test_a_deployment_keeps_its_authority_and_secret_and_gets_a_certificate_anew(tmp_path: Path) -> None:
    """Machines that believe the authority go on doing so, and invitations hold; the certificate would expire else."""
    renew_deployment(tmp_path, "baton", NOW)
    first = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    renew_deployment(tmp_path, "baton", NOW + timedelta(days=300))

    second = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert set(second) == {"ca.crt", "ca.key", "tls.crt", "tls.key", "join.secret"}
    assert [name for name in first if first[name] == second[name]] == [
        name for name in first if name in ("ca.crt", "ca.key", "join.secret")
    ]
    assert Authority.read(tmp_path / "ca.crt", tmp_path / "ca.key").certificate == first["ca.crt"]
    assert valid_period(second["tls.crt"])[1] == NOW + timedelta(days=300 + 365)
    assert len(read_secret(tmp_path / "join.secret")) >= 32


@pytest.mark.parametrize("missing", ["ca.crt", "ca.key"])
def test_half_an_authority_is_made_anew(tmp_path: Path, missing: str) -> None:
    """Nothing could be signed with what is left of it."""
    renew_deployment(tmp_path, "baton", NOW)
    before = (tmp_path / "ca.crt").read_bytes()
    (tmp_path / missing).unlink()

    renew_deployment(tmp_path, "baton", NOW)

    assert Authority.read(tmp_path / "ca.crt", tmp_path / "ca.key").certificate != before


def test_an_authority_whose_files_are_missing_is_named(tmp_path: Path) -> None:
    """Which of them it was is in the message."""
    with pytest.raises(ConfigurationError, match=r"gone\.crt"):
        Authority.read(tmp_path / "gone.crt", tmp_path / "gone.key")


def test_a_certificate_is_renewed_after_two_thirds_of_its_life() -> None:
    """A third is left for an authority that is away; of one that is over, at once."""
    authority = create_authority(NOW, timedelta(days=100))
    signed = _sign(authority, certificate_request(create_key(), "mac-1"))
    begin, end = valid_period(signed)

    assert renewal_seconds(signed, begin) == pytest.approx((end - begin).total_seconds() * 2 / 3)
    assert renewal_seconds(signed, begin + (end - begin) / 2) == pytest.approx((end - begin).total_seconds() / 6)
    assert renewal_seconds(signed, end) == 0.0


def test_what_is_signed_can_be_read_by_who_does_not_know_all_of_it() -> None:
    """An extension that is critical makes a certificate none to who does not know it; one says that it signs nothing.

    Source: RFC 5280, sections 4.2 and 4.2.1.1.
    """
    signed = _sign(create_authority(NOW, timedelta(days=100)), certificate_request(create_key(), "mac-1"))

    extensions = x509.load_pem_x509_certificate(signed).extensions
    assert len(extensions) == 4
    assert [each.oid for each in extensions if each.critical] == [x509.BasicConstraints.oid]


def test_a_key_lies_where_its_owner_alone_finds_it(tmp_path: Path) -> None:
    """Others cannot even enter the folder that is made for it."""
    path = tmp_path / "made" / "node.key"
    write_private(path, b"key")

    assert path.read_bytes() == b"key"
    assert [each.stat().st_mode & 0o777 for each in (path.parent, path)] == [0o700, 0o600]
