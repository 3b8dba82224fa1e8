"""Joining a deployment, over real connections."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc
from typer.testing import CliRunner

from agent.programs import run
from baton.agent.joining import Joiner
from baton.agent.membership import Membership, assigned_worker
from baton.cli.app import make_app
from baton.errors import (
    AuthenticationError,
    BatonError,
    InvalidFieldError,
    NotFoundError,
    OverloadedError,
    UnavailableError,
)
from baton.internal.v1 import join_service_pb2, node_pb2
from baton.router.join_verification import MAX_FAILURES, running_join_service
from baton.router.settings import RouterSettings
from baton.rpc.channel import open_channel
from baton.rpc.server import GrpcServer
from baton.security.authority import Authority, certificate_request, create_key, renewal_seconds
from baton.security.join_token import JoinToken, parse_join_token
from baton.security.tls import TlsIdentity, secured_by
from system.plan import free_ports

Attempt = Callable[[str], Coroutine[Any, Any, object]]
ASSIGNMENT = '[[node]]\nnode_id = "mac-*"\nrole = "decode"\nengine = "mlx"\n'


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    """Return the folder of a deployment's certificates, as `baton authority create` makes it."""
    folder = tmp_path / "deployment"
    assert CliRunner().invoke(make_app(), ["authority", "create", str(folder)]).exit_code == 0
    (folder / "assignments.toml").write_text(ASSIGNMENT)
    return folder


def token_of(deployment: Path) -> JoinToken:
    """Return the token that `baton authority token` prints."""
    return parse_join_token(CliRunner().invoke(make_app(), ["authority", "token", str(deployment)]).output)


def own(deployment: Path) -> TlsIdentity:
    """Return who the deployment's own processes are."""
    return TlsIdentity(deployment / "tls.crt", deployment / "tls.key", deployment / "ca.crt", "baton")


@asynccontextmanager
async def joinable(deployment: Path) -> AsyncIterator[str]:
    """Serve joining, and yield the address."""
    settings = RouterSettings(
        join_port=free_ports(["join"])["join"],
        join_secret_file=deployment / "join.secret",
        join_authority_key_file=deployment / "ca.key",
        join_assignments_file=deployment / "assignments.toml",
        tls_cert_file=deployment / "tls.crt",
        tls_key_file=deployment / "tls.key",
        tls_ca_file=deployment / "ca.crt",
    )
    with secured_by(settings.tls_identity()):
        async with running_join_service(settings, "127.0.0.1", 8010, "10.0.0.1:8011") as server:
            yield f"127.0.0.1:{server.port}"


def joiner(folder: Path, token: JoinToken, address: str, node_id: str = "mac-1") -> Joiner:
    """Return what joins for a machine."""

    async def find() -> str:
        return address

    return Joiner(token, node_id, Membership(folder, "baton"), find)


def test_a_machine_with_the_token_becomes_a_member(deployment: Path, tmp_path: Path) -> None:
    """It learns what to run and where, and its certificate opens the deployment's servers."""

    async def main() -> None:
        async with joinable(deployment) as address:
            machine = joiner(tmp_path / "mac", token_of(deployment), address)

            joined = await machine.join()

        assert joined.worker.role == "decode"
        assert joined.worker.settings == {
            "engine": "mlx",
            "router_address": "127.0.0.1:8010",
            "cache_index_address": "127.0.0.1:8011",
        }
        with secured_by(own(deployment)):
            server = GrpcServer("127.0.0.1:0")
            port = await server.start()
        with secured_by(machine.identity):
            async with open_channel(f"127.0.0.1:{port}") as channel:
                answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
        await server.drain(0)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        assert (tmp_path / "mac" / "node.key").stat().st_mode & 0o077 == 0

    run(main)


def _refused(
    deployment: Path, attempt: Callable[[str], Coroutine[Any, Any, object]], expected: type[BatonError]
) -> str:
    reasons: list[str] = []

    async def main() -> None:
        async with joinable(deployment) as address:
            with pytest.raises(expected) as caught:
                await attempt(address)
            reasons.append(caught.value.reason)

    run(main)
    return reasons[0]


def test_wrong_tokens_keep_nobody_else_out(deployment: Path, tmp_path: Path) -> None:
    """UNAUTHENTICATED with its reason, then RESOURCE_EXHAUSTED; the right one is taken from the same address."""
    right = token_of(deployment)
    wrong = JoinToken("w" * 64, right.authority)

    async def attempt(address: str) -> None:
        for _ in range(MAX_FAILURES):
            with pytest.raises(AuthenticationError) as caught:
                await joiner(tmp_path / "thief", wrong, address).join()
            assert caught.value.reason == "INVALID_JOIN_TOKEN"
        assert (await joiner(tmp_path / "mac", right, address).join()).worker.role == "decode"
        await joiner(tmp_path / "thief", wrong, address).ask()

    assert _refused(deployment, attempt, OverloadedError) == "JOIN_RATE"
    assert not (tmp_path / "thief" / "node.crt").exists()


def test_a_token_lets_one_machine_in_which_needs_it_no_more(deployment: Path, tmp_path: Path) -> None:
    """A member renews by its certificate, with any token; another machine cannot, with that of the member."""
    token = token_of(deployment)
    used_up = JoinToken("u" * 64, token.authority)

    async def attempt(address: str) -> None:
        await joiner(tmp_path / "mac", token, address).join()
        await joiner(tmp_path / "mac", used_up, address).ask()
        stolen = joiner(tmp_path / "thief", token, address, "mac-2")
        await stolen.ask()

    assert _refused(deployment, attempt, AuthenticationError) == "INVALID_JOIN_TOKEN"
    assert not (tmp_path / "thief" / "node.crt").exists()


@pytest.mark.parametrize("node_id", ["mac-1", "mac-2"])
def test_a_certificate_without_its_key_renews_nothing(deployment: Path, tmp_path: Path, node_id: str) -> None:
    """It is shown to everybody; nor does a member's let it become another."""
    token = token_of(deployment)

    async def attempt(address: str) -> None:
        await joiner(tmp_path / "mac", token, address).join()
        copied = tmp_path / "thief"
        shutil.copytree(tmp_path / "mac", copied)
        if node_id == "mac-1":
            (copied / "node.key").write_bytes(create_key())
        await joiner(copied, JoinToken("u" * 64, token.authority), address, node_id).ask()

    assert _refused(deployment, attempt, AuthenticationError) == "INVALID_JOIN_TOKEN"


@pytest.mark.parametrize("name", ["gateway", "router", "baton", "admin"])
def test_no_machine_is_called_like_a_part_of_the_deployment(deployment: Path, tmp_path: Path, name: str) -> None:
    """Its certificate would speak for that."""
    (deployment / "assignments.toml").write_text(ASSIGNMENT.replace("mac-*", "*"))

    _refused(
        deployment,
        lambda address: joiner(tmp_path / "mac", token_of(deployment), address, name).ask(),
        InvalidFieldError,
    )


def test_a_machine_that_nobody_has_work_for_is_told(deployment: Path, tmp_path: Path) -> None:
    """The patterns that there are stand in the message."""
    reason = _refused(
        deployment,
        lambda address: joiner(tmp_path / "pc", token_of(deployment), address, "pc-1").join(),
        NotFoundError,
    )

    assert reason == "NO_ASSIGNMENT"


def test_a_router_of_another_authority_does_not_get_the_secret(deployment: Path, tmp_path: Path) -> None:
    """Whoever else answers to multicast DNS fails the handshake."""
    other = tmp_path / "other"
    assert CliRunner().invoke(make_app(), ["authority", "create", str(other)]).exit_code == 0
    stranger = JoinToken(token_of(deployment).join_pass, token_of(other).authority)

    _refused(deployment, lambda address: joiner(tmp_path / "mac", stranger, address).ask(), UnavailableError)


def test_a_member_in_a_router_s_place_does_not_get_the_secret(deployment: Path, tmp_path: Path) -> None:
    """With it, it could join as that machine."""
    authority, key = Authority.read(deployment / "ca.crt", deployment / "ca.key"), create_key()
    names = {"node_id": "mac-2", "server_name": "baton", "now": datetime.now(UTC), "lifetime": timedelta(days=1)}
    signed = authority.sign(certificate_request(key, "mac-2"), **names)  # type: ignore[arg-type]
    (deployment / "tls.crt").write_bytes(signed)
    (deployment / "tls.key").write_bytes(key)

    _refused(
        deployment,
        lambda address: joiner(tmp_path / "mac", token_of(deployment), address).ask(),
        UnavailableError,
    )


def test_a_member_follows_to_another_authority(deployment: Path, tmp_path: Path) -> None:
    """By the documented steps, with its first token: a ca.crt of both, the new certificate, then the new one alone."""
    other = tmp_path / "other"
    assert CliRunner().invoke(make_app(), ["authority", "create", str(other)]).exit_code == 0
    token, old = token_of(deployment), (deployment / "ca.crt").read_bytes()
    new = (other / "ca.crt").read_bytes()

    async def main() -> None:
        async def renew() -> bytes:
            async with joinable(deployment) as address:
                return (await joiner(tmp_path / "mac", token, address).ask()).certificate

        await renew()
        (deployment / "ca.crt").write_bytes(old + new)
        await renew()
        for name in ("ca.key", "tls.crt", "tls.key"):
            shutil.copy(other / name, deployment / name)
        (deployment / "ca.crt").write_bytes(new + old)
        certificate = await renew()
        x509.load_pem_x509_certificate(certificate).verify_directly_issued_by(x509.load_pem_x509_certificate(new))
        (deployment / "ca.crt").write_bytes(new)
        assert await renew() != certificate

    run(main)


def test_whoever_waits_says_for_which_address_and_what_to_look_at(deployment: Path, tmp_path: Path) -> None:
    """A deadline that has passed says nothing to the person at the machine."""

    async def main() -> None:
        with pytest.raises(UnavailableError) as caught:
            await joiner(tmp_path / "mac", token_of(deployment), "127.0.0.1:1").ask()
        assert caught.value.message.startswith("no router answers at 127.0.0.1:1 (")
        assert "--join-address" in caught.value.message

    run(main)


def test_a_member_starts_while_the_router_is_away(deployment: Path, tmp_path: Path) -> None:
    """What was kept is used as long as its certificate is valid."""

    async def main() -> None:
        async with joinable(deployment) as address:
            machine = joiner(tmp_path / "mac", token_of(deployment), address)
            before = await machine.join()

        assert await machine.join() == before

    run(main)


def test_a_machine_that_is_no_member_waits_for_the_router(deployment: Path, tmp_path: Path) -> None:
    """It asks again until one answers."""

    async def main() -> None:
        pauses: list[float] = []
        async with joinable(deployment) as address:
            addresses = iter(["127.0.0.1:1", "127.0.0.1:1", address])

            async def find() -> str:
                return next(addresses)

            async def sleep(seconds: float) -> None:
                pauses.append(seconds)
                await asyncio.sleep(0)

            membership = Membership(tmp_path / "mac", "baton")
            joined = await Joiner(token_of(deployment), "mac-1", membership, find, sleep=sleep).join()

        assert joined.worker.role == "decode"
        assert len(pauses) == 2

    run(main)


def test_a_certificate_is_renewed_after_two_thirds_of_its_life(deployment: Path, tmp_path: Path) -> None:
    """By the calendar, which goes on while a machine sleeps. Servers and channels read the files for each call."""

    async def main() -> None:
        renewed = asyncio.Event()
        async with joinable(deployment) as address:
            asked: list[datetime] = []
            now = datetime.now(UTC)

            async def find() -> str:
                asked.append(now)
                if len(asked) > 2:
                    renewed.set()
                    await asyncio.Event().wait()
                return address

            async def sleep(_seconds: float) -> None:
                nonlocal now  # the machine sleeps for most of each pause
                now += timedelta(hours=6)
                await asyncio.sleep(0)

            membership = Membership(tmp_path / "mac", "baton")
            machine = Joiner(token_of(deployment), "mac-1", membership, find, sleep=sleep, now=lambda: now)
            first = await machine.join()
            task = asyncio.ensure_future(machine.renew(first.certificate))
            await renewed.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        assert timedelta(days=20) <= asked[1] - asked[0] <= timedelta(days=20, hours=7)
        assert machine.identity.cert_file.read_bytes() != first.certificate
        assert renewal_seconds(first.certificate, datetime.now(UTC) + timedelta(days=29)) == 0.0

    run(main)


def test_who_has_the_model_is_told_beside_the_workers_settings() -> None:
    """At the host that was asked, unless another is named; the worker itself knows no such setting."""
    answer = join_service_pb2.JoinResponse(router_address=":8010")
    answer.worker.role = node_pb2.NODE_ROLE_WORKER
    answer.worker.settings.update({"dtype": "float32", "weight_sources": ":7101,10.0.0.9:7102"})

    worker = assigned_worker(answer, "10.0.0.1:8013")

    assert worker.weight_sources == ("10.0.0.1:7101", "10.0.0.9:7102")
    assert worker.settings == {"dtype": "float32", "router_address": "10.0.0.1:8010"}
