"""What a node takes of what it is shown as granted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest

from baton.errors import ForbiddenError
from baton.internal.v1.kv_pb2 import TransferClaims, TransferGrant
from baton.security import access
from baton.security.access import (
    MAX_USES,
    NOT_GRANTED,
    SKEW_SECONDS,
    Caller,
    Party,
    TransferGate,
    digest_of,
    set_caller,
    sign_grant,
)

NOW = 1_800_000_000.0
ASKED: Mapping[str, str | bytes | int] = {
    "request_id": "r",
    "salt_digest": digest_of("salt"),
    "token_count": 7,
    "blocks_digest": b"",
}


class Nodes:
    """A sender and a receiver, what was refused, and a clock."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.now = NOW
        self.sender, self.receiver, self.other = (
            TransferGate(self.refused.append, now=lambda: self.now) for _ in "123"
        )

    def grant(self, **claims: object) -> TransferGrant:
        """Return what a router grants between them."""
        said = {"source_node_id": "prefill-1", "destination_node_id": "decode-1", **ASKED, **claims}
        message = TransferClaims(**said)  # type: ignore[arg-type]
        message.expires_at.FromSeconds(int(NOW) + 60)
        return sign_grant(message, self.sender.key, self.receiver.key)


@pytest.fixture(autouse=True)
def nobody_calls() -> Iterator[None]:
    """Nobody does in tests that follow, whoever called in one of these."""
    yield
    set_caller(Caller(None))


@pytest.fixture
def nodes() -> Nodes:
    """Return a pair of nodes, and another node."""
    return Nodes()


def refusal(check: Callable[..., object], grant: TransferGrant, **asked: str | bytes | int) -> str:
    """Return the claim for which a grant is refused; empty if it is not."""
    try:
        check(grant, **asked)
    except ForbiddenError as error:
        field = error.metadata["field"]
        return field if (error.reason, error.message.partition(":")[0]) == (NOT_GRANTED, f"transfer.{field}") else "?"
    return ""


def test_what_is_granted_passes_at_both_ends(nodes: Nodes) -> None:
    """The receiver learns what the sender will answer, and does not show it."""
    grant = nodes.grant()

    shown = nodes.receiver.check_taken(grant, source_node_id="prefill-1", **ASKED)
    answer = nodes.sender.check_asked(shown, **ASKED)

    assert answer == grant.answer_code
    assert (shown.answer_code, shown.take_code) == (b"", b"")
    assert nodes.refused == []


@pytest.mark.parametrize(
    ("field", "value"), [("request_id", "q"), ("salt_digest", b""), ("token_count", 8), ("blocks_digest", b"h")]
)
def test_another_transfer_than_was_granted_is_refused_by_the_claim(
    nodes: Nodes, field: str, value: str | bytes | int
) -> None:
    """At the sender and at the receiver, and counted."""
    asked = {**ASKED, field: value}

    refusals = [
        refusal(check, nodes.grant(), **asked) for check in (nodes.sender.check_asked, nodes.receiver.check_taken)
    ]

    assert refusals == nodes.refused == [field, field]


def test_a_grant_is_for_its_pair_of_processes(nodes: Nodes) -> None:
    """Another node takes none of its codes, and neither end those of the other."""
    grant = nodes.grant()
    swapped = TransferGrant(claims=grant.claims, ask_code=grant.take_code, take_code=grant.ask_code)

    checks = [nodes.other.check_asked, nodes.other.check_taken, nodes.receiver.check_asked, nodes.sender.check_taken]
    assert [refusal(check, grant, **ASKED) for check in checks] == ["claims"] * 4
    assert refusal(nodes.sender.check_asked, swapped, **ASKED) == "claims"
    assert refusal(nodes.receiver.check_taken, grant, **{**ASKED, "source_node_id": "prefill-2"}) == "source_node_id"
    assert refusal(nodes.sender.check_asked, TransferGrant(), **ASKED) == "claims"


def test_no_bit_of_a_grant_can_be_changed(nodes: Nodes) -> None:
    """Every bit of claims and codes counts, at the end that looks at it."""
    for field, check in (("ask_code", nodes.sender.check_asked), ("take_code", nodes.receiver.check_taken)):
        grant = nodes.grant()
        for name in ("claims", field):
            original: bytes = getattr(grant, name)
            for bit in range(8 * len(original)):
                changed = bytearray(original)
                changed[bit // 8] ^= 1 << bit % 8
                setattr(grant, name, bytes(changed))
                assert refusal(check, grant, **ASKED) == "claims", (name, bit)
            setattr(grant, name, original)
        assert refusal(check, grant, **ASKED) == ""


def test_a_grant_ends(nodes: Nodes) -> None:
    """When its time and the difference of clocks that is allowed for have passed."""
    grant = nodes.grant()
    nodes.now = NOW + 60 + SKEW_SECONDS
    assert refusal(nodes.sender.check_asked, grant, **ASKED) == ""
    nodes.now += 1
    assert refusal(nodes.sender.check_asked, grant, **ASKED) == "expires_at"
    assert refusal(nodes.receiver.check_taken, grant, **ASKED) == "expires_at"


def test_a_grant_is_shown_a_few_times(nodes: Nodes) -> None:
    """A stream may be resumed, and no more; another grant of the same request counts by itself."""
    grants = nodes.grant(), nodes.grant(destination_node_id="decode-2")

    refusals = [[refusal(nodes.sender.check_asked, grant, **ASKED) for _ in range(MAX_USES + 2)] for grant in grants]

    assert refusals == [[""] * MAX_USES + ["ask_code"] * 2] * 2


def test_a_grant_is_of_no_use_to_another_node(nodes: Nodes) -> None:
    """Whoever shows it must have the certificate of the node that it names, where certificates name nodes."""
    set_caller(Caller(Party.NODE, "decode-1"))
    assert nodes.sender.check_asked(nodes.grant(), **ASKED)
    set_caller(Caller(Party.NODE, "thief"))
    with pytest.raises(ForbiddenError, match="does not speak for node decode-1"):
        nodes.sender.check_asked(nodes.grant(), **ASKED)


def test_the_grants_used_last_are_remembered(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there is memory for: whoever is granted much cannot fill a node with what it has been shown."""
    monkeypatch.setattr(access, "_MAX_REMEMBERED", 2)
    set_caller(Caller(Party.NODE, "decode-1"))
    grants = [nodes.grant(request_id=name) for name in "abc"]
    for name, grant in zip("abc", grants, strict=True):
        nodes.sender.check_asked(grant, **{**ASKED, "request_id": name})

    assert list(nodes.sender._uses) == [grant.ask_code for grant in grants[1:]]
