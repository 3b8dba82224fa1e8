"""Pods get certificates for the tokens of their service accounts, over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from typer.testing import CliRunner

from baton.cli.app import make_app
from baton.config.settings import load_settings
from baton.discovery.api_server import ServiceAccountKeys
from baton.errors import ConfigurationError, UnavailableError
from baton.internal.v1 import join_service_pb2 as messages
from baton.internal.v1.join_service_pb2_grpc import (
    JoinServiceServicer,
    JoinServiceStub,
    add_JoinServiceServicer_to_server,
)
from baton.router.join_verification import MAX_FAILURES, running_join_service
from baton.router.pod_enrolment import PodEnrolment
from baton.router.settings import RouterSettings
from baton.rpc.enrolment import ask_router, certified, enrolled
from baton.rpc.server import GrpcServer
from baton.security.authority import Authority, certificate_request, create_key
from baton.security.tls import TlsIdentity, TlsSettings, secured_by
from baton.telemetry.metrics import Metrics
from security.service_accounts import NAMESPACE, Signer
from system.plan import free_ports

SIGNER = Signer()
PODS = "baton-gateway=gateway,baton-cache-index=cache-index,baton-decode-d=node"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a deployment's authority."""
    folder = tmp_path / "deployment"
    assert CliRunner().invoke(make_app(), ["authority", "create", str(folder)]).exit_code == 0
    return folder


def settings_of(folder: Path, **changes: Any) -> RouterSettings:
    """Return settings of a router that takes pods in."""
    files = {"tls_cert_file": folder / "own" / "r.crt", "tls_key_file": folder / "own" / "r.key"}
    given = {"tls_ca_file": folder / "ca.crt", "join_authority_key_file": folder / "ca.key", "join_pods": PODS}
    return load_settings(RouterSettings, {**files, **given, "join_port": 1, **changes})


@asynccontextmanager
async def joinable(folder: Path, **changes: Any) -> AsyncIterator[str]:
    """Serve joining by a router that has signed its own certificate, and yield the address."""
    settings = settings_of(folder, join_port=free_ports(["join"])["join"], **changes)
    identity, authority = settings.tls_identity(), Authority.read(folder / "ca.crt", folder / "ca.key")
    assert identity is not None
    keys = ServiceAccountKeys(lambda: SIGNER.key_set)
    pods = PodEnrolment(settings, NAMESPACE, authority, keys)

    async def sign(request: bytes) -> bytes:
        return pods.sign(request, "router", datetime.now(UTC))

    with secured_by(identity):
        async with certified(identity, sign), running_join_service(settings, "127.0.0.1", 1, "", pods) as server:
            yield f"127.0.0.1:{server.port}"


async def join(address: str, folder: Path, **request: Any) -> messages.JoinResponse:
    """Return what the router answers."""
    credentials = grpc.ssl_channel_credentials((folder / "ca.crt").read_bytes())
    options = (("grpc.ssl_target_name_override", "baton"),)
    wanted = {"certificate_request": certificate_request(create_key(), "admin"), **request}
    async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
        return await JoinServiceStub(channel).Join(messages.JoinRequest(**wanted), timeout=30)


def name_in(certificate: bytes) -> tuple[str, timedelta]:
    """Return whom a certificate names, and how long it is valid."""
    found = x509.load_pem_x509_certificate(certificate)
    (name,) = found.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(name.value), found.not_valid_after_utc - found.not_valid_before_utc


@pytest.mark.parametrize(
    ("account", "name"),
    [("baton-decode-d", "baton-decode-d-7f9-x2"), ("baton-gateway", "gateway"), ("baton-cache-index", "cache-index")],
)
def test_a_pod_enrols_with_its_settings_alone(folder: Path, account: str, name: str) -> None:
    """What it asks for in its request is not looked at: a node is its pod, others are their part; 0600, for a day."""
    token_file, own = folder / "token", folder / "pod"
    token_file.write_text(SIGNER.token(account, "baton-decode-d-7f9-x2"))
    seen: list[bytes] = []

    async def service() -> None:
        seen.append((own / "node.crt").read_bytes())

    async def main() -> None:
        async with joinable(folder) as address:
            settings = TlsSettings(
                tls_cert_file=own / "node.crt",
                tls_key_file=own / "node.key",
                tls_ca_file=folder / "ca.crt",
                tls_enrol_address=address,
                tls_enrol_token_file=token_file,
            )
            await enrolled(settings, service())

    asyncio.run(main())

    assert name_in(seen[0]) == (name, timedelta(hours=24, minutes=5))
    assert [path.stat().st_mode & 0o777 for path in sorted(own.iterdir())] == [0o600, 0o600]


@pytest.mark.parametrize(
    "token",
    [
        SIGNER.token("baton-decode-d", namespace="other"),
        SIGNER.token("default"),
        SIGNER.token("baton-decode-d", "router"),
        SIGNER.token("baton-decode-d", "baton"),
        Signer().token("baton-gateway"),
        Signer(key_id="k2").token("baton-gateway"),
        SIGNER.token("baton-gateway", aud=["https://kubernetes.default.svc"]),
        "none",
    ],
)
def test_other_pods_get_nothing(folder: Path, token: str) -> None:
    """Of another namespace, account or cluster, named like a part of the deployment, or with a token for others."""

    async def main() -> None:
        async with joinable(folder) as address:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await join(address, folder, service_account_token=token)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED

    asyncio.run(main())


def test_a_token_is_shown_to_routers_alone(folder: Path) -> None:
    """Another member of the deployment that takes a router's place in the network learns none."""
    authority, own, seen = Authority.read(folder / "ca.crt", folder / "ca.key"), folder / "own", list[str]()
    node = TlsIdentity(own / "n.crt", own / "n.key", folder / "ca.crt", "baton")
    token_file = folder / "token"
    token_file.write_text(SIGNER.token("baton-gateway"))

    class Listener(JoinServiceServicer):
        async def Join(self, request: Any, _context: Any) -> messages.JoinResponse:  # noqa: N802
            seen.append(request.service_account_token)
            return messages.JoinResponse()

    async def sign(request: bytes) -> bytes:
        now, day = datetime.now(UTC), timedelta(days=1)
        return authority.sign(request, node_id="mac-1", server_name="baton", now=now, lifetime=day)

    async def main() -> None:
        async with certified(node, sign):
            with secured_by(node):
                server = GrpcServer("127.0.0.1:0", demands_certificate=False)
            server.add("baton.internal.v1.JoinService", partial(add_JoinServiceServicer_to_server, Listener()))
            address = f"127.0.0.1:{await server.start()}"
            with pytest.raises(UnavailableError):
                await ask_router(address, node, token_file.read_text(), certificate_request(create_key(), "x"))
            await server.drain(0)

    asyncio.run(main())

    assert seen == []


def test_without_a_secret_no_machine_joins_and_wrong_tokens_are_bounded(folder: Path) -> None:
    """A pod with the right token is let in for all that."""

    async def main() -> None:
        async with joinable(folder) as address:
            codes = []
            for _ in range(MAX_FAILURES + 1):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await join(address, folder, node_id="mac-1", secret="x")
                codes.append(refused.value.code())
            answer = await join(address, folder, service_account_token=SIGNER.token("baton-gateway"))
        assert codes == [grpc.StatusCode.UNAUTHENTICATED] * MAX_FAILURES + [grpc.StatusCode.RESOURCE_EXHAUSTED]
        assert name_in(answer.certificate)[0] == "gateway"

    asyncio.run(main())


def test_a_pod_renews_by_its_token_alone(folder: Path) -> None:
    """As a machine it would live on for months without one, where both kinds may join and an assignment fits."""
    assignments, pod = folder / "assignments.toml", "baton-decode-d-7f9-x2"
    assignments.write_text('[[node]]\nrole = "decode"\nengine = "mock"\n')
    both = {"join_secret_file": folder / "join.secret", "join_assignments_file": assignments}
    key = create_key()

    async def main() -> None:
        async with joinable(folder, **both) as address:
            asked = {"certificate_request": certificate_request(key, pod)}
            mine = await join(address, folder, service_account_token=SIGNER.token("baton-decode-d", pod), **asked)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await join(address, folder, node_id=pod, certificate=mine.certificate, **asked)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert name_in(mine.certificate)[0] == pod

    asyncio.run(main())


@pytest.mark.parametrize("error", [ValueError("no PEM"), OSError("no space left"), ConfigurationError("not yet")])
def test_a_renewal_that_fails_is_told_counted_and_tried_again(
    folder: Path, error: Exception, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it fails by: a task that ends unseen leaves a process that nobody believes a day later."""
    identity = TlsIdentity(folder / "own" / "c", folder / "own" / "k", folder / "ca.crt", "baton")
    authority, now, renewed = Authority.read(folder / "ca.crt", folder / "ca.key"), datetime.now(UTC), asyncio.Event()
    answers: list[Exception | None] = [None, *[error] * 12, None]
    pauses: list[float] = []

    async def sign(request: bytes) -> bytes:
        if problem := answers.pop(0):
            raise problem
        return authority.sign(request, node_id="n", server_name="baton", now=now, lifetime=timedelta(hours=24))

    async def sleep(seconds: float) -> None:
        nonlocal now
        pauses.append(seconds)
        now += timedelta(hours=16) if len(answers) == 13 else timedelta(seconds=seconds)
        if not answers:
            renewed.set()
            await asyncio.Event().wait()

    async def main() -> None:
        async with certified(identity, sign, sleep=sleep, now=lambda: now):
            first = identity.cert_file.read_bytes()
            async with asyncio.timeout(60):
                await renewed.wait()
            assert identity.cert_file.read_bytes() != first

    counted: list[str] = []
    monkeypatch.setattr(Metrics, "add", lambda _metrics, metric: counted.append(metric.name))
    asyncio.run(main())

    told = [record.getMessage() for record in caplog.records if "renewal_failed" in record.getMessage()]
    assert len(told) == 12
    assert 28_000 < int(told[0].split("seconds_left=")[1].split()[0]) <= 28_800
    assert [round(pause, 1) for pause in pauses[1:5]] == [0.2, 0.4, 0.8, 1.6]
    assert max(pauses) == 120.0
    assert counted == ["baton.certificate.renewal_failures"] * 12


def test_a_certificate_is_renewed_after_two_thirds_and_asked_for_until_then(folder: Path) -> None:
    """A router that is away at first, or at the renewal, is asked again; the key stays, servers take the new files."""
    identity = TlsIdentity(folder / "own" / "c", folder / "own" / "k", folder / "ca.crt", "baton")
    authority, now, signed = Authority.read(folder / "ca.crt", folder / "ca.key"), datetime.now(UTC), []
    renewed, refusals = asyncio.Event(), [True, False, True, True, False]

    async def sign(request: bytes) -> bytes:
        if refusals.pop(0):
            raise ConfigurationError("not yet")
        signed.append(now)
        lifetime = timedelta(hours=24)
        return authority.sign(request, node_id="n", server_name="baton", now=now, lifetime=lifetime)

    async def sleep(_seconds: float) -> None:
        nonlocal now
        now += timedelta(minutes=30)
        if len(signed) == 2:  # and written, as nothing is waited for in between
            renewed.set()
            await asyncio.Event().wait()
        await asyncio.sleep(0)

    async def main() -> tuple[bytes, bytes]:
        async with certified(identity, sign, sleep=sleep, now=lambda: now):
            first = identity.cert_file.read_bytes()
            async with asyncio.timeout(60):
                await renewed.wait()
            return first, identity.cert_file.read_bytes()

    first, second = asyncio.run(main())

    assert timedelta(hours=16) <= signed[1] - signed[0] <= timedelta(hours=18)
    keys = [x509.load_pem_x509_certificate(each).public_key() for each in (first, second)]
    assert keys[0] == keys[1]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"join_pods": "baton-gateway=admin"}, "join_pods: expected"),
        ({"join_port": 0}, "join_authority_key_file, join_pods: without effect"),
        ({"join_secret_file": "{folder}/join.secret"}, "join_assignments_file: needed with join_port"),
        ({"tls_enrol_address": "router:8012"}, "each needs the other"),
    ],
)
def test_settings_that_do_not_fit_are_refused(folder: Path, changes: dict[str, Any], problem: str) -> None:
    """By name."""
    filled = {key: value.format(folder=folder) if isinstance(value, str) else value for key, value in changes.items()}

    with pytest.raises(ConfigurationError, match=problem):
        settings_of(folder, **filled)


def test_keys_that_are_replaced_are_asked_for_again_but_not_at_will() -> None:
    """A token of a new key makes one question; those that name any make none for five seconds."""
    now, asked, signers = 100.0, [], [SIGNER]

    def read() -> bytes:
        asked.append(now)
        return signers[-1].key_set

    keys = ServiceAccountKeys(read, lambda: now)
    assert keys.key("k1") == SIGNER.jwk
    signers.append(Signer(key_id="k2"))
    for _ in range(3):
        with pytest.raises(Exception, match="another cluster"):
            keys.key("k2")
    now += 5

    assert keys.key("k2") == signers[-1].jwk
    assert asked == [100.0, 105.0]
