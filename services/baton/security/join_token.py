"""The token by which a machine joins: a pass, and the deployment's authority, by which the router is believed.

`baton1.PASS.AUTHORITY`, the authority's certificate as DER in URL-safe base64. One string is all that the machine's
owner needs, and the pass is sent to nobody but a holder of a certificate of that authority. `END-MACHINES-NUMBER-CODE`
is a pass: until when it holds, for how many machines, a random number, and the code (HMAC-SHA-256) by which the holder
of the deployment's secret knows that it is one of its own.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import secrets
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from baton.errors import AuthenticationError, ConfigurationError

_PREFIX = "baton1"
_SECRET = re.compile(r"^[A-Za-z0-9_-]{32,256}$")
_PASS = re.compile(r"(?P<said>(?P<end>[0-9]{1,12})-(?P<machines>[0-9]{1,4})-[0-9a-f]{32})-(?P<code>[0-9a-f]{64})")


@dataclass(frozen=True, slots=True, repr=False)
class JoinToken:
    """What a join token says."""

    join_pass: str
    """What proves the right to join."""
    authority: bytes
    """Certificate of the deployment's authority, PEM."""

    @property
    def text(self) -> str:
        """Return the token as it is handed on."""
        der = ssl.PEM_cert_to_DER_cert(self.authority.decode("ascii"))
        return f"{_PREFIX}.{self.join_pass}.{base64.urlsafe_b64encode(der).decode('ascii').rstrip('=')}"


def parse_join_token(text: str) -> JoinToken:
    """Return what a token says, or raise ConfigurationError, which does not repeat it."""
    prefix, _, rest = text.strip().partition(".")
    join_pass, _, authority = rest.partition(".")
    if prefix != _PREFIX or not _SECRET.match(join_pass) or not authority:
        raise ConfigurationError(f"join token: expected {_PREFIX}.PASS.AUTHORITY, as `baton authority token` prints it")
    try:
        der = base64.b64decode(authority + "=" * (-len(authority) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigurationError(
            f"join token: its authority is no base64: {error}; copy all of what `baton authority token` prints"
        ) from error
    return JoinToken(join_pass, ssl.DER_cert_to_PEM_cert(der).encode("ascii"))


def create_pass(secret: str, *, ends_at: datetime, num_machines: int = 1, node_id: str = "") -> str:
    """Return a pass for so many machines, 1 to 9999, that holds until then; with an id, for the node of that alone."""
    said = f"{round(ends_at.timestamp())}-{num_machines}-{secrets.token_hex(16)}"
    return f"{said}-{_code(secret, said + node_id)}"


class JoinPasses:
    """Lets machines in by passes made of a deployment's secret, each for as many machines as it is for.

    A machine may show its pass again: an answer may be lost. What has been used is known to one process alone, as long
    as it runs: passes are to be short-lived.
    """

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._users: dict[str, set[str]] = {}
        """Node ids by pass, of passes that hold."""

    @contextmanager
    def used_by(self, node_id: str, shown: str, now: datetime) -> Iterator[None]:
        """Take a machine in; raise AuthenticationError, leaving its pass as it was, if the pass is none that counts."""
        match = _PASS.fullmatch(shown)
        codes = [_code(self._secret, match["said"] + name) for name in ("", node_id)] if match else []
        if match is None or not any(hmac.compare_digest(code, match["code"]) for code in codes):
            raise _refused("is not of this deployment, or for another machine")
        if now.timestamp() >= int(match["end"]):
            end = datetime.fromtimestamp(int(match["end"]), UTC)
            raise _refused(f"has held until {end:%Y-%m-%d %H:%M} UTC: ask for another (`baton authority token`)")
        for other in [each for each in self._users if int(each.partition("-")[0]) <= now.timestamp()]:
            del self._users[other]
        users = self._users.setdefault(shown, set())
        is_further = node_id not in users
        if is_further and len(users) >= int(match["machines"]):
            raise _refused("has been used by as many machines as it is for: ask for another (`baton authority token`)")
        users.add(node_id)
        try:
            yield
        except BaseException:
            if is_further:
                users.discard(node_id)
            raise


def _refused(problem: str) -> AuthenticationError:
    return AuthenticationError(f"the join token {problem}", reason="INVALID_JOIN_TOKEN")


def _code(secret: str, said: str) -> str:
    return hmac.digest(secret.encode("ascii"), said.encode("utf-8"), "sha256").hex()


def create_secret() -> str:
    """Return a secret of 256 bits."""
    return secrets.token_hex(32)


def read_secret(path: Path) -> str:
    """Return the secret in a file, or raise ConfigurationError: 32 characters or more of A-Z a-z 0-9 _ -."""
    try:
        secret = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"join secret {path}: {error}") from error
    if not _SECRET.match(secret):
        raise ConfigurationError(f"join secret {path}: expected 32 to 256 characters of A-Z a-z 0-9 _ -")
    return secret


def first_certificate(pem: bytes) -> bytes:
    """Return the first certificate of a PEM text, or raise ConfigurationError."""
    found = re.search(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n?", pem, re.DOTALL)
    if found is None:
        raise ConfigurationError("authority: expected a certificate in PEM format")
    return found.group()
