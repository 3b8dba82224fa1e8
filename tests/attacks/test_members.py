"""Findings 1 and 2: internal calls without a certificate, and by a member that claims to be, or to speak for, another.

An attacker registered a fast node and read another tenant's prompt, took nodes down by one call, and ended a process by
registering its name with a great epoch.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import grpc
import pytest

from attacks.deployment import CALL_SECONDS, MODEL, Deployment
from attacks.victims import full, running
from baton.internal.v1 import block_service_pb2, node_pb2, prefill_service_pb2
from baton.internal.v1 import router_service_pb2 as messages
from baton.internal.v1 import worker_service_pb2 as worker
from baton.internal.v1.block_service_pb2_grpc import BlockServiceStub
from baton.internal.v1.prefill_service_pb2_grpc import PrefillServiceStub
from baton.internal.v1.router_service_pb2_grpc import RouterServiceStub
from baton.internal.v1.worker_service_pb2_grpc import WorkerServiceStub
from baton.wire.quantities import duration_from_seconds
from checkpoints import checkpoint
from system.plan import HOST, free_ports

VICTIM = "mac-1"
Act = Callable[[grpc.aio.Channel], Awaitable[object]]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Run a router and a node that decodes and prefills."""
    folder: Path = tmp_path_factory.mktemp("deployment")
    with Deployment(folder, {"router": "router", VICTIM: "worker"}) as deployment:
        deployment.wait_for_node(VICTIM)
        yield deployment


async def list_nodes(channel: grpc.aio.Channel) -> object:
    """Look where everybody is."""
    return await RouterServiceStub(channel).ListNodes(messages.ListNodesRequest(), timeout=CALL_SECONDS)  # type: ignore[no-untyped-call]


async def place(channel: grpc.aio.Channel) -> object:
    """Take a place from those who wait."""
    request = messages.PlaceRequest(request_id="r", model_id=MODEL, prompt_token_count=8, max_token_count=8)
    return await RouterServiceStub(channel).Place(request, timeout=CALL_SECONDS)  # type: ignore[no-untyped-call]


async def pull(channel: grpc.aio.Channel) -> object:
    """Read cached KV, by the hash of a guessed text."""
    call = BlockServiceStub(channel).PullBlocks(block_service_pb2.PullBlocksRequest(), timeout=CALL_SECONDS)  # type: ignore[no-untyped-call]
    return [response async for response in call]


async def prefill(channel: grpc.aio.Channel) -> object:
    """Have a prompt computed."""
    call = PrefillServiceStub(channel).Prefill(prefill_service_pb2.PrefillRequest(), timeout=CALL_SECONDS)  # type: ignore[no-untyped-call]
    return [response async for response in call]


async def pause(channel: grpc.aio.Channel) -> object:
    """Take a node away."""
    request = worker.PauseRequest(lease=duration_from_seconds(60.0))
    return await WorkerServiceStub(channel).Pause(request, timeout=CALL_SECONDS)  # type: ignore[no-untyped-call]


def register(victim: node_pb2.NodeDescription, **changes: object) -> Act:
    """Return the registration of a node like another."""
    claimed = node_pb2.NodeDescription()
    claimed.CopyFrom(victim)
    for name, value in changes.items():
        setattr(claimed, name, value)

    async def act(channel: grpc.aio.Channel) -> object:
        call = RouterServiceStub(channel).Register(timeout=CALL_SECONDS)  # type: ignore[no-untyped-call]
        await call.write(messages.RegisterRequest(node=claimed))
        return await call.read()

    return act


def check_unharmed(deployment: Deployment, before: node_pb2.NodeDescription) -> None:
    """Check that the process that was attacked runs, under its name, and takes requests."""
    state = deployment.wait_for_node(VICTIM)
    assert deployment.processes[VICTIM].exit_status is None
    assert (state.node.epoch, state.node.address) == (before.epoch, before.address)
    assert state.unusable_reason == ""


@full
@pytest.mark.parametrize("role", ["router", "cache-index", "decode"])
def test_no_other_machine_is_served_without_certificates(role: str, tmp_path: Path) -> None:
    """A process that would is not started: whoever reached it could do all that follows."""
    port = free_ports(["victim"])["victim"]
    settings = {"host": "0.0.0.0", "port": str(port)}
    if role == "decode":
        settings |= {"engine": "mock", "model_dir": str(checkpoint("llama"))}

    def ask() -> None:
        with socket.create_connection((HOST, port), timeout=CALL_SECONDS):
            pass

    with pytest.raises(AssertionError, match="--insecure"), running(role, settings, tmp_path, ask):
        pass


def test_without_a_certificate_nothing_can_be_called(deployment: Deployment) -> None:
    """Neither router nor node speak to strangers."""
    victim = deployment.nodes()[VICTIM].node
    acts = {"router": [list_nodes, place, register(victim)], VICTIM: [pull, prefill, pause]}

    answers = [deployment.attack(None, name, act) for name, tried in acts.items() for act in tried]

    assert answers == [grpc.StatusCode.UNAVAILABLE] * 6
    check_unharmed(deployment, victim)


def test_a_member_can_neither_look_around_nor_speak_for_another(deployment: Deployment) -> None:
    """Its certificate names it, and its own registration is all that the router takes of it."""
    victim, thief = deployment.nodes()[VICTIM].node, deployment.certificate("mac-2")
    acts = {
        "router": [list_nodes, place, register(victim), register(victim, epoch=time.time_ns(), address="127.0.0.1:9")],
        VICTIM: [pause],
    }

    answers = [deployment.attack(thief, name, act) for name, tried in acts.items() for act in tried]

    assert answers == [grpc.StatusCode.PERMISSION_DENIED] * 5
    own = deployment.attack(thief, "router", register(victim, node_id="mac-2", address="127.0.0.1:9"))
    assert isinstance(own, messages.RegisterResponse)
    check_unharmed(deployment, victim)


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(2**63 - 1, grpc.StatusCode.INVALID_ARGUMENT), (0, grpc.StatusCode.ABORTED)],
    ids=["greatest", "latest"],
)
def test_no_registration_ends_another_process(deployment: Deployment, epoch: int, code: grpc.StatusCode) -> None:
    """Also where processes share a certificate: whoever is heard keeps its name, and a loser goes on asking."""
    victim = deployment.nodes()[VICTIM].node
    act = register(victim, epoch=epoch or time.time_ns(), address="127.0.0.1:9")

    assert deployment.attack(deployment.operator, "router", act) == code
    check_unharmed(deployment, victim)


def test_no_node_is_paused_for_ever(deployment: Deployment) -> None:
    """A lease of three years is refused, whoever asks."""
    victim = deployment.nodes()[VICTIM].node

    async def act(channel: grpc.aio.Channel) -> object:
        request = worker.PauseRequest(lease=duration_from_seconds(1e8))
        return await WorkerServiceStub(channel).Pause(request, timeout=CALL_SECONDS)  # type: ignore[no-untyped-call]

    assert deployment.attack(deployment.operator, VICTIM, act) == grpc.StatusCode.INVALID_ARGUMENT
    check_unharmed(deployment, victim)
