"""A Kubernetes cluster that signs tokens of service accounts, as far as tests need one."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils

NAMESPACE = "llm"


class Signer:
    """Holds a cluster's key.

    Args:
        is_rsa: Whether its key is RSA's, as clusters have by default; else P-256.
        key_id: Names it.
    """

    def __init__(self, *, is_rsa: bool = False, key_id: str = "k1") -> None:
        self._key = rsa.generate_private_key(65537, 2048) if is_rsa else ec.generate_private_key(ec.SECP256R1())
        self.key_id = key_id

    @property
    def jwk(self) -> dict[str, str]:
        """Return the public key as the API server tells it."""
        if isinstance(self._key, rsa.RSAPrivateKey):
            shown = self._key.public_key().public_numbers()
            return {"kid": self.key_id, "kty": "RSA", "alg": "RS256", "n": _text(shown.n), "e": _text(shown.e)}
        point = self._key.public_key().public_numbers()
        return {"kid": self.key_id, "kty": "EC", "crv": "P-256", "x": _text(point.x), "y": _text(point.y)}

    @property
    def key_set(self) -> bytes:
        """Return the answer of /openid/v1/jwks."""
        return json.dumps({"keys": [self.jwk]}).encode()

    def token(
        self, account: str, pod: str = "pod-1", *, namespace: str = NAMESPACE, header: Any = None, **claims: Any
    ) -> str:
        """Return the token of a pod; further claims win."""
        now = datetime.now(UTC).timestamp()
        bound = {"namespace": namespace, "pod": {"name": pod, "uid": "1"}, "serviceaccount": {"name": account}}
        said = {"aud": ["baton"], "exp": now + 600, "nbf": now - 5, "kubernetes.io": bound} | claims
        algorithm = "RS256" if isinstance(self._key, rsa.RSAPrivateKey) else "ES256"
        head = {"alg": algorithm, "kid": self.key_id} if header is None else header
        signed = f"{_encoded(json.dumps(head).encode())}.{_encoded(json.dumps(said).encode())}"
        return f"{signed}.{_encoded(self._signature(signed.encode()))}"

    def _signature(self, signed: bytes) -> bytes:
        if isinstance(self._key, rsa.RSAPrivateKey):
            return self._key.sign(signed, padding.PKCS1v15(), hashes.SHA256())
        pair = utils.decode_dss_signature(self._key.sign(signed, ec.ECDSA(hashes.SHA256())))
        return b"".join(part.to_bytes(32, "big") for part in pair)


def _text(number: int) -> str:
    return _encoded(number.to_bytes((number.bit_length() + 7) // 8, "big"))


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
