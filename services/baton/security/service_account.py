"""Tokens of Kubernetes service accounts: whoever holds one is the pod that it names, by a signature of its cluster."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils

from baton.errors import AuthenticationError

AUDIENCE = "baton"
"""For whom tokens are made that are shown to routers; those for the API server, or for others, are not taken."""


@dataclass(frozen=True, slots=True)
class Pod:
    """The pod that a token names."""

    namespace: str
    account: str
    name: str


def key_id_of(token: str) -> str:
    """Return the name of the key that a token (RFC 7519) says it is signed by, or raise AuthenticationError."""
    try:
        return str(json.loads(_decoded(token.partition(".")[0]))["kid"])
    except (ValueError, KeyError, TypeError) as error:
        raise _refused("is none") from error


def pod_of(token: str, key: Mapping[str, str], now: datetime) -> Pod:
    """Return the pod that a token names, which is bound to it.

    `token` is in RFC 7519's compact form, `key` the cluster's public one as a JSON Web Key (RFC 7517). Raises
    AuthenticationError if it is not signed by the key, has ended, is for others, or names no pod.
    """
    signed, _, signature = token.rpartition(".")
    header, _, said = signed.partition(".")
    try:
        algorithm = json.loads(_decoded(header))["alg"]
        _check_signature(key, algorithm, signed.encode("ascii"), _decoded(signature))
        claims: Mapping[str, Any] = json.loads(_decoded(said))
        audiences = [claims["aud"]] if isinstance(claims["aud"], str) else claims["aud"]
        if not claims.get("nbf", 0) <= now.timestamp() < claims["exp"]:
            raise _refused("has ended, or has not begun")
        if AUDIENCE not in audiences:
            raise _refused(f"is not for {AUDIENCE!r}, but for {', '.join(audiences)[:80]!r}")
        bound = claims["kubernetes.io"]
        return Pod(bound["namespace"], bound["serviceaccount"]["name"], bound["pod"]["name"])
    except (ValueError, KeyError, TypeError, InvalidSignature, UnsupportedAlgorithm) as error:
        raise _refused("is none of this cluster's, or names no pod") from error


def _check_signature(key: Mapping[str, str], algorithm: str, signed: bytes, signature: bytes) -> None:
    """Check one of the two kinds of signatures that clusters make (RFC 7518): RS256 and ES256."""
    if (algorithm, key["kty"]) == ("RS256", "RSA"):
        public = rsa.RSAPublicNumbers(_number(key["e"]), _number(key["n"])).public_key()
        public.verify(signature, signed, padding.PKCS1v15(), hashes.SHA256())
    elif (algorithm, key["kty"], key.get("crv")) == ("ES256", "EC", "P-256"):
        pair = (int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big"))
        numbers = ec.EllipticCurvePublicNumbers(_number(key["x"]), _number(key["y"]), ec.SECP256R1())
        numbers.public_key().verify(utils.encode_dss_signature(*pair), signed, ec.ECDSA(hashes.SHA256()))
    else:
        raise InvalidSignature


def _number(text: str) -> int:
    return int.from_bytes(_decoded(text), "big")


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _refused(problem: str) -> AuthenticationError:
    return AuthenticationError(f"the service account's token {problem}", reason="INVALID_JOIN_TOKEN")
