"""Tokens of Kubernetes service accounts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from baton.errors import AuthenticationError
from baton.security.service_account import Pod, key_id_of, pod_of
from security.service_accounts import Signer, _encoded

SIGNER = Signer()


@pytest.mark.parametrize("signer", [SIGNER, Signer(is_rsa=True)], ids=["ES256", "RS256"])
def test_a_token_names_its_pod(signer: Signer) -> None:
    """By either kind of key; the key's id is read before it is known."""
    token = signer.token("baton-decode-d", "baton-decode-d-1")

    assert key_id_of(token) == "k1"
    assert pod_of(token, signer.jwk, datetime.now(UTC)) == Pod("llm", "baton-decode-d", "baton-decode-d-1")


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": ["https://kubernetes.default.svc"]},
        {"aud": "vault"},
        {"exp": 1.0},
        {"nbf": 4e9},
        {"kubernetes.io": {"namespace": "llm", "serviceaccount": {"name": "a"}}},
        {"kubernetes.io": "llm"},
        {"exp": "never"},
    ],
)
def test_a_token_for_others_or_of_no_pod_is_refused(claims: dict[str, Any]) -> None:
    """Whatever the cluster has signed: for the API server, ended, not yet begun, bound to no pod."""
    with pytest.raises(AuthenticationError, match="service account's token"):
        pod_of(SIGNER.token("a", **claims), SIGNER.jwk, datetime.now(UTC))


@pytest.mark.parametrize("header", [{"alg": "none"}, {"alg": "HS256"}, {"alg": "RS256"}, {"alg": "ES384"}, {}, "x", []])
def test_a_token_cannot_choose_how_it_is_judged(header: Any) -> None:
    """Neither no signature nor one by the public key as a secret counts."""
    with pytest.raises(AuthenticationError):
        pod_of(SIGNER.token("a", header=header), SIGNER.jwk, datetime.now(UTC))


def test_a_changed_token_is_refused() -> None:
    """Claims of one with the signature of another, another cluster's, and what is none at all."""
    own, other = SIGNER.token("a", "p").split("."), SIGNER.token("b", "q").split(".")
    wrong = [".".join([own[0], other[1], own[2]]), ".".join(own[:2]), ".".join([*own[:2], _encoded(bytes(64))])]
    for token in [*wrong, Signer().token("a"), "", "a.b.c", "....", "é.é.é"]:
        with pytest.raises(AuthenticationError):
            pod_of(token, SIGNER.jwk, datetime.now(UTC))
    for token in ("", "a", "bm8.x.y", "W10.x.y"):
        with pytest.raises(AuthenticationError):
            key_id_of(token)
