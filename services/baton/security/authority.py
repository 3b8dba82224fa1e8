"""Certificates of a deployment: its authority, requests of those who join, and what is signed for them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from baton.errors import ConfigurationError, InvalidFieldError
from baton.installation import install_line
from baton.security.join_token import create_secret

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ModuleNotFoundError as missing:
    raise ConfigurationError(f"joining needs the package cryptography: {install_line('agent')}") from missing

AUTHORITY_LIFETIME = timedelta(days=3650)
POD = "pod"
"""Unit in the certificates of pods: for each they show a token, so `Authority.knows` takes none of them."""
_CLOCK_SKEW = timedelta(minutes=5)
"""Certificates begin so much earlier: the clock of a machine that joins may be behind."""


def check_intact(certificate: bytes) -> None:
    """Raise ConfigurationError if an authority's certificate from a token, PEM, lost or changed letters on its way."""
    try:
        authority = x509.load_pem_x509_certificate(certificate)
        if authority.issuer == authority.subject:
            authority.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm) as error:
        raise ConfigurationError(
            "join token: a part of it is missing or changed: its authority is no certificate. Copy all of what "
            "`baton authority token` prints, on one line"
        ) from error


@dataclass(frozen=True, slots=True)
class Authority:
    """Signs certificates: its own certificate and the key of it, PEM."""

    certificate: bytes
    """Certificates of the authority; the first is the one that signs."""
    key: bytes
    """Key of the first. Whoever has it can join without a token."""

    @classmethod
    def read(cls, cert_file: Path, key_file: Path) -> Authority:
        """Return the authority in two files; raise ConfigurationError if they cannot be read, or do not fit."""
        try:
            authority = cls(cert_file.read_bytes(), key_file.read_bytes())
            certificate = x509.load_pem_x509_certificate(authority.certificate)
            key = serialization.load_pem_private_key(authority.key, None)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise ConfigurationError(f"authority {cert_file}, {key_file}: {error}") from error
        if key.public_key() != certificate.public_key():
            raise ConfigurationError(f"{key_file} is not the key of {cert_file}")
        return authority

    def sign(
        self, request: bytes, *, node_id: str, server_name: str, now: datetime, lifetime: timedelta, unit: str = ""
    ) -> bytes:
        """Return a certificate for the key of a PEM request; names in the request are not taken.

        Servers show it under `server_name`, and under NODE_ID.SERVER_NAME to those who ask for one process alone.
        Raises InvalidFieldError if the request is none, or not signed by its own key.
        """
        try:
            wanted = x509.load_pem_x509_csr(request)
            is_signed = wanted.is_signature_valid
        except (ValueError, InvalidSignature, UnsupportedAlgorithm) as error:
            raise InvalidFieldError("certificate_request", f"expected a PKCS #10 request in PEM: {error}") from error
        if not is_signed:
            raise InvalidFieldError("certificate_request", "expected a request that is signed by its own key")
        issuer = x509.load_pem_x509_certificate(self.certificate)
        builder = _builder(node_id, issuer.subject, now, lifetime, unit)
        builder = builder.public_key(wanted.public_key())
        names = (server_name, f"{node_id}.{server_name}")
        usages = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
        builder = (
            builder.add_extension(x509.SubjectAlternativeName([*map(x509.DNSName, names)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(_authority_identifier(issuer), critical=False)
        )
        return builder.sign(_signing_key(self.key), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def knows(self, certificate: bytes, request: bytes, *, node_id: str, now: datetime) -> bool:
        """Return whether a PEM certificate is of one of these authorities for a machine, valid, with a request's key.

        Whoever can sign a request holds its key: such a node is who it says, and needs no token to go on as that.
        """
        try:
            shown, wanted = x509.load_pem_x509_certificate(certificate), x509.load_pem_x509_csr(request)
            believed = x509.load_pem_x509_certificates(self.certificate)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            return False
        names = [name.value for name in shown.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        is_valid = shown.not_valid_before_utc <= now < shown.not_valid_after_utc
        has_key = wanted.is_signature_valid and wanted.public_key() == shown.public_key()
        units = [unit.value for unit in shown.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)]
        is_named = names == [node_id] and POD not in units
        return is_valid and has_key and is_named and any(_is_issued_by(shown, each) for each in believed)


def create_authority(now: datetime, lifetime: timedelta) -> Authority:
    """Return an authority with a key of its own (P-256)."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "baton authority")])
    certificate = (
        _builder("baton authority", name, now, lifetime)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate.public_bytes(serialization.Encoding.PEM), _key_pem(key))


def deployment_files(authority: Authority, server_name: str, now: datetime, lifetime: timedelta) -> Mapping[str, bytes]:
    """Return the files of a deployment's own processes by name: the authority's, and a certificate that they share."""
    key = create_key()
    certificate = authority.sign(
        certificate_request(key, "baton"), node_id="baton", server_name=server_name, now=now, lifetime=lifetime
    )
    return {"ca.crt": authority.certificate, "ca.key": authority.key, "tls.crt": certificate, "tls.key": key}


def renew_deployment(folder: Path, server_name: str, now: datetime) -> None:
    """Make the files of a deployment, a join secret among them, where they are missing, and its certificate anew."""
    own, key_file, secret_file = folder / "ca.crt", folder / "ca.key", folder / "join.secret"
    is_made = own.is_file() and key_file.is_file()
    authority = Authority.read(own, key_file) if is_made else create_authority(now, AUTHORITY_LIFETIME)
    for name, content in deployment_files(authority, server_name, now, timedelta(days=365)).items():
        write_private(folder / name, content)
    if not secret_file.is_file():
        write_private(secret_file, create_secret().encode("ascii"))


def create_key() -> bytes:
    """Return a key, PEM (P-256)."""
    return _key_pem(ec.generate_private_key(ec.SECP256R1()))


def certificate_request(key: bytes, node_id: str) -> bytes:
    """Return the request for a certificate of a PEM key."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node_id)])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(_signing_key(key), hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def valid_period(certificate: bytes) -> tuple[datetime, datetime]:
    """Return when the first certificate of a PEM text begins and ends, in UTC; raise ValueError without one."""
    first = x509.load_pem_x509_certificate(certificate)
    return first.not_valid_before_utc, first.not_valid_after_utc


def renewal_seconds(certificate: bytes, now: datetime) -> float:
    """Return the time until two thirds of a certificate's life have passed, 0 or more."""
    begin, end = valid_period(certificate)
    return max(0.0, (begin + (end - begin) * 2 / 3 - now).total_seconds())


def write_private(path: Path, content: bytes) -> None:
    """Replace a file, which its owner alone can read, as a whole: readers see the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, name = tempfile.mkstemp(dir=path.parent)  # readable by the owner alone
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    os.replace(name, path)


def _is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _builder(
    common_name: str, issuer: x509.Name, now: datetime, lifetime: timedelta, unit: str = ""
) -> x509.CertificateBuilder:
    named = [(NameOID.COMMON_NAME, common_name), *([(NameOID.ORGANIZATIONAL_UNIT_NAME, unit)] if unit else [])]
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(*each) for each in named]))
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + lifetime)
    )


def _authority_identifier(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    try:
        extension = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    except x509.ExtensionNotFound:
        key = issuer.public_key()
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(key)  # type: ignore[arg-type] # an issuer's key signs
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(extension.value)


def _signing_key(pem: bytes) -> CertificateIssuerPrivateKeyTypes:
    return serialization.load_pem_private_key(pem, None)  # type: ignore[return-value] # signing refuses others


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
