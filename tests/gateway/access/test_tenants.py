"""Owners of API keys have prefix caches of their own."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from baton.errors import ConfigurationError
from baton.gateway.access.tenants import TenantSalts
from gateway.fake_cluster import MODEL, FakeCluster, Loop
from gateway.rest import ask


def secret_file(folder: Path, content: str = "s" * 32) -> Path:
    """Write a deployment's secret."""
    file = folder / "tenant.secret"
    file.write_text(content)
    return file


def test_salts_tell_owners_and_their_own_salts_apart(tmp_path: Path) -> None:
    """No choice of a client's gives it another owner's; where there are no keys, clients choose alone."""
    salts = TenantSalts(secret_file(tmp_path))
    made = [salts.salt_of(*each) for each in (("bob", ""), ("alice", ""), ("bob", "alice"))]

    assert len(set(made)) == 3
    assert salts.salt_of("bob", "") == TenantSalts(secret_file(tmp_path)).salt_of("bob", "")
    assert salts.salt_of("bob", "") != TenantSalts(None).salt_of("bob", "")
    assert salts.salt_of("", "x") == "x"


def test_a_secret_must_be_long(tmp_path: Path) -> None:
    """The message says which file."""
    with pytest.raises(ConfigurationError, match=r"tenant\.secret has less than 32"):
        TenantSalts(secret_file(tmp_path, "short"))
    with pytest.raises(ConfigurationError, match=r"tenant\.secret has less than 32"):
        TenantSalts(secret_file(tmp_path, "s" * 32 + "\nshort from=2026-01-02T00:10:00Z\n"))
    with pytest.raises(ConfigurationError, match="cannot read"):
        TenantSalts(tmp_path / "none")


def test_a_secret_follows_another_with_an_overlap(tmp_path: Path) -> None:
    """Without a restart: tenants go over one by one, each at the same moment in every gateway, and none comes back."""
    now = begun = datetime(2026, 1, 2, tzinfo=UTC).timestamp()
    file, tenants = secret_file(tmp_path, "old" * 11 + "\n"), [f"tenant-{number}" for number in range(64)]
    gateways = [TenantSalts(file, lambda: now), TenantSalts(file, lambda: now)]
    old, new = (
        [TenantSalts(secret_file(tmp_path, each * 11), lambda: now).salt_of(tenant, "") for tenant in tenants]
        for each in ("old", "new")
    )
    secret_file(tmp_path, "old" * 11 + "\n" + "new" * 11 + " from=2026-01-02T00:10:00Z\n")
    shares = []
    for minutes in (1, 9, 25, 40, 55, 71):
        now = begun + 60 * minutes
        made, others = ([salts.salt_of(tenant, "") for tenant in tenants] for salts in gateways)
        assert made == others
        assert all(each in (before, after) for each, before, after in zip(made, old, new, strict=True))
        shares.append(sum(each == after for each, after in zip(made, new, strict=True)))

    assert shares == sorted(shares)
    assert shares[:2] == [0, 0]
    assert shares[-1] == 64
    assert 8 <= shares[2] <= 24


def test_a_secret_that_cannot_be_read_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is told once; another that can be read counts at once."""
    now = 100.0
    salts = TenantSalts(secret_file(tmp_path), lambda: now)
    before = salts.salt_of("bob", "")
    for content in ("short", "s" * 32 + "\n" + "n" * 32 + " from=tomorrow"):
        secret_file(tmp_path, content)
        for _ in range(3):
            now += 1.0
            assert salts.salt_of("bob", "") == before
    assert caplog.text.count("tenant_secrets_read") == 2
    secret_file(tmp_path, "n" * 32)
    now += 1.0

    assert salts.salt_of("bob", "") != before


def test_secrets_are_looked_at_once_a_second(tmp_path: Path) -> None:
    """However many requests come: the file may be a network's."""
    now = 100.0
    salts = TenantSalts(secret_file(tmp_path), lambda: now)
    before = salts.salt_of("bob", "")
    secret_file(tmp_path, "n" * 32)
    now += 0.9
    assert salts.salt_of("bob", "") == before
    now += 0.1

    assert salts.salt_of("bob", "") != before


def test_only_keys_of_one_owner_share_blocks(loop: Loop, cluster: FakeCluster, tmp_path: Path) -> None:
    """Router, index and nodes see other hashes for the same prompt: neither counts nor times tell of it.

    Gateways that have one secret make the same, so that an owner's cache is hit whichever is asked.
    """
    keys, secret = tmp_path / "keys", tmp_path / "secret"
    keys.write_text("bob:old\nbob:new\nalice:hers\n")
    secret.write_text("s" * 32)
    body = {"model": MODEL, "prompt": list(range(5, 69)), "max_tokens": 1}
    for asked in (("old",), ("new", "hers")):
        with loop.running(cluster, api_keys_file=keys, tenant_secret_file=secret) as gateway:
            for key in asked:
                assert ask(gateway, "/v1/completions", body, headers={"authorization": f"Bearer {key}"}).status == 200

    old, new, hers = (request.block_hashes for request in cluster.router.requests if not request.is_dry_run)
    assert old == new
    assert len(old) == len(hers) > 0
    blocks = [{hashes[i : i + 16] for i in range(0, len(hashes), 16)} for hashes in (old, hers)]
    assert blocks[0].isdisjoint(blocks[1])
    salts = [request.cache_salt for node in cluster.decodes for request in node.requests]
    assert len(set(salts)) == 2


def test_nodes_are_told_a_tenant_that_has_no_name_and_its_weight(
    loop: Loop, cluster: FakeCluster, tmp_path: Path
) -> None:
    """All keys of one owner are one; the router is told the weight, too."""
    keys = tmp_path / "keys"
    keys.write_text("bob:old weight=3\nbob:new weight=3\nalice:hers\n")
    body = {"model": MODEL, "prompt": [5, 6], "max_tokens": 1}
    with loop.running(cluster, api_keys_file=keys) as gateway:
        for key in ("old", "new", "hers"):
            assert ask(gateway, "/v1/completions", body, headers={"authorization": f"Bearer {key}"}).status == 200

    asked = [(request.tenant, request.tenant_weight) for node in cluster.decodes for request in node.requests]
    bob, alice = (TenantSalts(None).id_of(name) for name in ("bob", "alice"))
    assert asked == [(bob, 3), (bob, 3), (alice, 1)]
    assert len({bob, alice, TenantSalts(None).salt_of("bob", "")[:16], ""}) == 4
    assert TenantSalts(None).id_of("") == ""
    assert len(bob) == len(alice) == 16  # of what a node takes and shows
    placed = [request.tenant_weight for request in cluster.router.requests if not request.is_dry_run]
    assert placed == [3, 3, 1]
