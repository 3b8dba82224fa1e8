"""Joining by a code, over real connections: the way in, and attacks on it."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from agent.programs import run
from agent.test_joining import deployment, joiner  # noqa: F401 - a fixture
from baton.agent import code_entry
from baton.agent.code_entry import Applicant, token_for
from baton.errors import AuthenticationError, ConfigurationError, OverloadedError, UnavailableError
from baton.internal.v1 import join_service_pb2 as messages
from baton.internal.v1 import join_service_pb2_grpc as service
from baton.router import join_verification
from baton.router.join_verification import running_join_service
from baton.router.settings import RouterSettings
from baton.security.authority import certificate_request, create_authority, create_key
from baton.security.join_code import CodeExchange, Invitations, JoinCode
from baton.security.tls import secured_by
from system.plan import free_ports

NOW = datetime.now(UTC)


@asynccontextmanager
async def inviting(folder: Path) -> AsyncIterator[tuple[str, Invitations]]:
    """Serve joining, where a machine "taken" is; yield the address, and the codes."""
    port, invitations = free_ports(["join"])["join"], Invitations(lambda: ("taken",))
    settings = RouterSettings(
        join_port=port,
        join_secret_file=folder / "join.secret",
        join_authority_key_file=folder / "ca.key",
        join_assignments_file=folder / "assignments.toml",
        tls_cert_file=folder / "tls.crt",
        tls_key_file=folder / "tls.key",
        tls_ca_file=folder / "ca.crt",
    )
    with secured_by(settings.tls_identity()):
        async with running_join_service(settings, "127.0.0.1", 8010, "", invitations=invitations):
            yield f"127.0.0.1:{port}", invitations


class _Relay(service.JoinServiceServicer):
    """Stands between: a server with a certificate of its own, which hands on what it may have altered."""

    def __init__(
        self,
        behind: str,
        *,
        on_request: Callable[[messages.EnterRequest], messages.EnterRequest] = lambda request: request,
        on_response: Callable[[messages.EnterResponse], messages.EnterResponse] = lambda response: response,
    ) -> None:
        self._behind = behind
        self._on_request = on_request
        self._on_response = on_response
        self.address = ""

    async def Enter(  # noqa: N802
        self, requests: AsyncIterator[messages.EnterRequest], context: Any
    ) -> AsyncIterator[messages.EnterResponse]:
        async with await _opened(self._behind) as channel:
            call = service.JoinServiceStub(channel).Enter(timeout=30)  # type: ignore[no-untyped-call]
            try:
                async for request in requests:
                    await call.write(self._on_request(request))
                    yield self._on_response(await call.read())
            except grpc.aio.AioRpcError as error:
                context.set_trailing_metadata(tuple(error.trailing_metadata()))
                await context.abort(error.code(), error.details())

    async def __aenter__(self) -> _Relay:
        authority, key = create_authority(NOW, timedelta(days=1)), create_key()
        wanted = certificate_request(key, "baton")
        names = {"node_id": "baton", "server_name": "baton"}
        shown = authority.sign(wanted, **names, now=NOW, lifetime=timedelta(days=1))
        self._server = grpc.aio.server()
        service.add_JoinServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        credentials = grpc.ssl_server_credentials([(key, shown)])
        self.address = f"127.0.0.1:{self._server.add_secure_port('127.0.0.1:0', credentials)}"
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(0)


def applicant(node_id: str = "mac-1") -> Applicant:
    """Return a machine; its port is free, and listened to while it asks."""
    return Applicant(node_id, "127.0.0.1", free_ports(["worker"])["worker"])


Attempt = Callable[[str, Invitations], Coroutine[Any, Any, None]]


def attempted(folder: Path, attempt: Attempt) -> None:
    """Make an attempt on a deployment that takes codes."""

    async def main() -> None:
        async with inviting(folder) as (address, invitations):
            await attempt(address, invitations)

    run(main)


def test_a_code_makes_a_member_once(deployment: Path, tmp_path: Path) -> None:  # noqa: F811
    """The token that it brings is for this machine; used again, the holder is told by whom it has been."""

    async def attempt(address: str, invitations: Invitations) -> None:
        code, _ = invitations.create(datetime.now(UTC))

        token = await token_for(code, applicant(), address)

        assert (await joiner(tmp_path / "mac", token, address).ask()).worker.role == "decode"
        with pytest.raises(AuthenticationError):
            await joiner(tmp_path / "other", token, address, "mac-2").ask()
        with pytest.raises(ConfigurationError, match="used by mac-1: `baton invite` prints another"):
            await token_for(code, applicant("mac-2"), address)

    attempted(deployment, attempt)


def test_a_name_that_another_machine_has_is_refused_and_costs_no_code(deployment: Path) -> None:  # noqa: F811
    """Hosts may well be called alike: two of one name would take each other's place for ever."""

    async def attempt(address: str, invitations: Invitations) -> None:
        code, _ = invitations.create(datetime.now(UTC))

        with pytest.raises(ConfigurationError, match=r"a machine of the cluster is called taken already: .*`--name`"):
            await token_for(code, applicant("taken"), address)
        await token_for(code, applicant("other"), address)

    attempted(deployment, attempt)


def test_of_two_who_use_a_code_at_once_one_gets_in(deployment: Path) -> None:  # noqa: F811
    """Both have proved to know it before either is let in."""

    async def attempt(address: str, invitations: Invitations) -> None:
        code, _ = invitations.create(datetime.now(UTC))
        asking = (token_for(code, applicant(f"mac-{number}"), address) for number in range(4))

        answers = await asyncio.gather(*asking, return_exceptions=True)

        refused = [answer for answer in answers if isinstance(answer, BaseException)]
        assert len(refused) == 3
        assert all(isinstance(each, ConfigurationError) and "has been used by" in each.message for each in refused)

    attempted(deployment, attempt)


def test_wrong_codes_are_told_alike_and_burn_the_right_one(deployment: Path) -> None:  # noqa: F811
    """So is a code that never was; one address is told to wait after five."""

    async def attempt(address: str, invitations: Invitations) -> None:
        code, _ = invitations.create(datetime.now(UTC))
        wrong = JoinCode(code.number, "abandon-ability-able")
        never = JoinCode(code.number + 1, code.words)
        told = []
        for guess in (never, wrong, wrong, wrong, wrong):
            with pytest.raises(AuthenticationError) as refused:
                await token_for(guess, applicant(), address)
            told.append((refused.value.message, refused.value.reason))

        with pytest.raises(OverloadedError, match="wait for a minute"):
            await token_for(wrong, applicant(), address)  # the fifth guess at this code
        with pytest.raises(OverloadedError):
            await token_for(code, applicant(), address)

        assert len(set(told)) == 1
        assert "burnt" in invitations.problem(code.number, "mac-1", datetime.now(UTC))

    attempted(deployment, attempt)


def test_a_code_that_has_expired_is_told_to_its_holder(deployment: Path) -> None:  # noqa: F811
    """With the remedy."""

    async def attempt(address: str, invitations: Invitations) -> None:
        code, _ = invitations.create(datetime.now(UTC) - timedelta(minutes=15))

        with pytest.raises(ConfigurationError, match=r"expired at \d\d:\d\d UTC: `baton invite` prints another"):
            await token_for(code, applicant(), address)

    attempted(deployment, attempt)


@pytest.mark.parametrize(
    ("version", "minutes", "told"),
    [
        ("9.9.9", 0, "Baton is 9.9.9 here and .* at the router: install the same on both"),
        ("", 12, r"clock is 7\d\d s ahead of the router's: set it"),
        ("", -12, r"clock is 7\d\d s behind the router's"),
    ],
)
def test_what_does_not_fit_is_told_and_costs_no_code(
    deployment: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    minutes: int,
    told: str,
) -> None:
    """Versions and clocks: once that is mended the code still holds."""

    async def attempt(address: str, invitations: Invitations) -> None:
        code, _ = invitations.create(datetime.now(UTC))
        with monkeypatch.context() as patched:
            patched.setattr(code_entry, "__version__", version or code_entry.__version__)
            patched.setattr(join_verification, "_disagreement", _at(minutes))
            with pytest.raises(ConfigurationError, match=told):
                await token_for(code, applicant(), address)

        await token_for(code, applicant(), address)

    attempted(deployment, attempt)


def _at(minutes: int) -> Callable[[messages.Newcomer, datetime], str]:
    """Return the check of a router whose clock is so much behind."""
    check = join_verification._disagreement
    return lambda newcomer, now: check(newcomer, now - timedelta(minutes=minutes))


def test_a_blocked_port_is_told_and_costs_no_code(deployment: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """The router tries the port at which the machine listens meanwhile."""

    async def attempt(address: str, invitations: Invitations) -> None:
        code, _ = invitations.create(datetime.now(UTC))
        mac = applicant()
        with monkeypatch.context() as patched:
            patched.setattr(code_entry, "_listen", _listen_elsewhere)
            with pytest.raises(
                ConfigurationError, match=f"does not reach port {mac.worker_port} of this machine at 127"
            ):
                await token_for(code, mac, address)

        await token_for(code, mac, address)

    attempted(deployment, attempt)


async def _listen_elsewhere(_applicant: Applicant) -> asyncio.Server:
    return await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)


def test_who_records_an_exchange_cannot_play_it_again(deployment: Path) -> None:  # noqa: F811
    """The router's element is another each time: what proved the code then is a wrong guess now."""

    async def attempt(address: str, invitations: Invitations) -> None:
        code, _ = invitations.create(datetime.now(UTC))
        recorded: list[messages.EnterRequest] = []

        def record(request: messages.EnterRequest) -> messages.EnterRequest:
            recorded.append(request)
            return request

        async with _Relay(address, on_request=record) as relay:
            await token_for(code, applicant(), relay.address)
        assert len(recorded) == 2

        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await _said(address, *recorded)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED

    attempted(deployment, attempt)


def test_who_relays_an_exchange_gets_nothing(deployment: Path, tmp_path: Path) -> None:  # noqa: F811
    """The machine joins, and what passed holds no token; the call to join itself believes the real router alone."""

    async def attempt(address: str, invitations: Invitations) -> None:
        code, _ = invitations.create(datetime.now(UTC))
        passed: list[bytes] = []

        def hear(response: messages.EnterResponse) -> messages.EnterResponse:
            passed.append(response.SerializeToString())
            return response

        async with _Relay(address, on_response=hear) as relay:
            token = await token_for(code, applicant(), relay.address)
            with pytest.raises(UnavailableError):
                await joiner(tmp_path / "mac", token, relay.address).ask()
        assert len(passed) == 2
        assert all(token.join_pass.encode() not in each for each in passed)

    attempted(deployment, attempt)


def test_who_alters_an_exchange_is_no_router(deployment: Path) -> None:  # noqa: F811
    """Another name for the machine, another element, another outcome: the machine takes none of them."""

    def rename(request: messages.EnterRequest) -> messages.EnterRequest:
        if request.WhichOneof("message") == "begin":
            newcomer = messages.Newcomer.FromString(request.begin.newcomer)
            newcomer.node_id = "mallory"
            request.begin.newcomer = newcomer.SerializeToString()
        return request

    def own_element(response: messages.EnterResponse) -> messages.EnterResponse:
        if response.element:
            response.element = CodeExchange("abandon-ability-able", b"", is_router=True).element
        return response

    def own_outcome(response: messages.EnterResponse) -> messages.EnterResponse:
        if response.sealed:
            response.sealed = messages.EnterOutcome(token="baton1.mine").SerializeToString().ljust(32)
        return response

    async def attempt(address: str, invitations: Invitations) -> None:
        for relay in (
            _Relay(address, on_request=rename),
            _Relay(address, on_response=own_element),
            _Relay(address, on_response=own_outcome),
        ):
            code, _ = invitations.create(datetime.now(UTC))
            async with relay:
                with pytest.raises(AuthenticationError, match="the code is wrong"):
                    await token_for(code, applicant(), relay.address)

    attempted(deployment, attempt)


def test_who_says_nothing_or_nonsense_is_refused(deployment: Path) -> None:  # noqa: F811
    """The field is named."""

    async def attempt(address: str, _invitations: Invitations) -> None:
        for newcomer, told in ((b"\xff", "expected a Newcomer"), (b"", "begin.newcomer.node_id: expected 1 to 63")):
            with pytest.raises(grpc.aio.AioRpcError, match=told):
                await _said(address, messages.EnterRequest(begin=messages.EnterBegin(newcomer=newcomer)))

    attempted(deployment, attempt)


def test_a_flood_of_guesses_takes_turns(deployment: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Off the event loop, one at a time; it would hold up every placement else. Too many are told to come again."""
    at_once, most, threads = 0, 0, set[str]()
    monkeypatch.setattr(join_verification, "_MAX_EXCHANGES", 4)

    class Watched(CodeExchange):
        def take(self, element: bytes) -> bytes:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            threads.add(threading.current_thread().name)
            expected = super().take(element)
            at_once -= 1
            return expected

    monkeypatch.setattr(join_verification, "CodeExchange", Watched)

    async def attempt(address: str, invitations: Invitations) -> None:
        newcomer = messages.Newcomer(code_number=1, node_id="mac").SerializeToString()
        guess = CodeExchange("abandon-ability-able", newcomer, is_router=False).element
        begin = messages.EnterRequest(begin=messages.EnterBegin(newcomer=newcomer, element=guess))
        told = await asyncio.gather(*(_said(address, begin) for _ in range(8)), return_exceptions=True)
        reasons = [str(each) for each in told]

        assert sum("too many machines show codes" in each for each in reasons) == 4
        assert most == 1
        assert threading.main_thread().name not in threads

    attempted(deployment, attempt)


def test_where_nobody_answers_the_remedy_is_told(tmp_path: Path) -> None:
    """A port that is closed, and one where something else is."""

    async def main() -> None:
        code = JoinCode(7, "abandon-ability-able")
        closed = free_ports(["closed"])["closed"]
        with pytest.raises(UnavailableError, match=f"no router answers at 127.0.0.1:{closed} .*firewall"):
            await token_for(code, applicant(), f"127.0.0.1:{closed}")
        with pytest.raises(ConfigurationError, match="address: expected host:port"):
            await token_for(code, applicant(), "127.0.0.1:http")

    run(main)


async def _said(address: str, *requests: messages.EnterRequest) -> None:
    """Send requests to a router as they are, one after each answer."""
    async with await _opened(address) as channel:
        call = service.JoinServiceStub(channel).Enter(timeout=30)  # type: ignore[no-untyped-call]
        for request in requests:
            await call.write(request)
            await call.read()


async def _opened(address: str) -> grpc.aio.Channel:
    """Return a channel that believes whoever is at an address."""
    host, _, port = address.rpartition(":")
    certificate = await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))
    credentials = grpc.ssl_channel_credentials(certificate.encode())
    return grpc.aio.secure_channel(address, credentials, options=(("grpc.ssl_target_name_override", "baton"),))
