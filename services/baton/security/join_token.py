"""The token by which a machine joins: the deployment's secret, and its authority, by which the router is believed.

`baton1.SECRET.AUTHORITY`, the authority's certificate as DER in URL-safe base64. One string is all that the machine's
owner needs, and the secret is sent to nobody but a holder of a certificate of that authority.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
import ssl
from dataclasses import dataclass
from pathlib import Path

from baton.errors import ConfigurationError

_PREFIX = "baton1"
_SECRET = re.compile(r"^[A-Za-z0-9_-]{32,256}$")


@dataclass(frozen=True, slots=True, repr=False)
class JoinToken:
    """What a join token says."""

    secret: str
    """Proves the right to join."""
    authority: bytes
    """Certificate of the deployment's authority, PEM."""

    @property
    def text(self) -> str:
        """Return the token as it is handed on."""
        der = ssl.PEM_cert_to_DER_cert(self.authority.decode("ascii"))
        return f"{_PREFIX}.{self.secret}.{base64.urlsafe_b64encode(der).decode('ascii').rstrip('=')}"


def parse_join_token(text: str) -> JoinToken:
    """Return what a token says.

    Raises:
        ConfigurationError: If it is none; the message does not repeat it.
    """
    prefix, _, rest = text.strip().partition(".")
    secret, _, authority = rest.partition(".")
    if prefix != _PREFIX or not _SECRET.match(secret) or not authority:
        raise ConfigurationError(
            f"join token: expected {_PREFIX}.SECRET.AUTHORITY, as `baton authority token` prints it"
        )
    try:
        der = base64.b64decode(authority + "=" * (-len(authority) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigurationError(
            f"join token: its authority is no base64: {error}; copy all of what `baton authority token` prints"
        ) from error
    return JoinToken(secret, ssl.DER_cert_to_PEM_cert(der).encode("ascii"))


def create_secret() -> str:
    """Return a secret of 256 bits."""
    return secrets.token_hex(32)


def read_secret(path: Path) -> str:
    """Return the secret in a file.

    Raises:
        ConfigurationError: If it cannot be read, or is shorter than 32 characters or holds others than A-Z a-z 0-9 _ -.
    """
    try:
        secret = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"join secret {path}: {error}") from error
    if not _SECRET.match(secret):
        raise ConfigurationError(f"join secret {path}: expected 32 to 256 characters of A-Z a-z 0-9 _ -")
    return secret


def first_certificate(pem: bytes) -> bytes:
    """Return the first certificate of a PEM text.

    Raises:
        ConfigurationError: If it has none.
    """
    found = re.search(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n?", pem, re.DOTALL)
    if found is None:
        raise ConfigurationError("authority: expected a certificate in PEM format")
    return found.group()
