"""The agent's service over a real channel."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent.programs import Lines, program, run
from baton.agent import server
from baton.agent.model_workers import MakeWorker, ModelWorkers
from baton.agent.server import AgentServicer, _run_models, further_worker, worker_command, worker_environment
from baton.agent.settings import AgentSettings
from baton.agent.supervisor import Supervisor
from baton.config.settings import load_settings
from baton.errors import ConfigurationError
from baton.internal.v1 import agent_service_pb2, agent_service_pb2_grpc
from baton.rpc.channel import open_channel
from baton.rpc.server import GrpcServer
from baton.security.tls import TlsIdentity


def test_the_status_says_what_is_supervised() -> None:
    """Node id, state, restarts and the machine are reported; an exit status only after an exit."""

    async def main() -> None:
        supervisor = Supervisor(program("decode-a", ""), Lines())
        supervisor.num_restarts = 2
        server = GrpcServer("127.0.0.1:0")
        servicer = AgentServicer("decode-a", supervisor)
        server.add(
            "baton.internal.v1.AgentService",
            lambda target: agent_service_pb2_grpc.add_AgentServiceServicer_to_server(servicer, target),
        )
        port = await server.start()
        async with open_channel(f"127.0.0.1:{port}") as channel:
            stub = agent_service_pb2_grpc.AgentServiceStub(channel)

            status = await stub.GetStatus(agent_service_pb2.GetStatusRequest(), timeout=20)

        await server.drain(0)
        assert (status.node_id, status.restart_count) == ("decode-a", 2)
        assert status.worker_state == agent_service_pb2.WORKER_STATE_STARTING
        assert not status.HasField("last_exit_status")
        assert status.memory_byte_count > 0

    run(main)


def test_the_worker_gets_its_address_and_the_further_flags() -> None:
    """Flags are split as a shell does."""
    settings = AgentSettings(
        worker_role="decode",
        worker_node_id="mac-1",
        worker_port=7001,
        worker_arguments="--engine mlx --model-dir '/a b'",
    )

    command = list(worker_command(settings, "decode"))

    assert command[-4:] == ["--engine", "mlx", "--model-dir", "/a b"]
    assert command[2:8] == ["baton.cli", "serve", "decode", "--host=127.0.0.1", "--port=7001", "--node-id=mac-1"]


@pytest.mark.parametrize(
    ("flags", "values", "dtype"),
    [
        ("--dtype=bfloat16", {}, "bfloat16"),
        ("--dtype bfloat16", {"dtype": "float32"}, "bfloat16"),
        ("", {"dtype": "float16"}, "float16"),
        ("", {}, "float32"),
    ],
)
def test_further_workers_have_the_flags_of_the_own_one_but_for_what_is_its_own(
    flags: str, values: dict[str, str], dtype: str
) -> None:
    """Its model and ports, written either way; the number format is told apart, as memory is planned by it."""
    own = "--model-dir=/a --model-name org/a '--fast-port=8051' --mock-shape llama-3.1-8b"

    arguments, settings = further_worker(f"--engine mock {own} {flags} '--advertise-address=10.0.0.1'", values)

    assert arguments == ["--engine", "mock", "--advertise-address=10.0.0.1"]
    assert settings == {"dtype": dtype}


@pytest.mark.parametrize(("dtype", "expected"), [("bfloat16", 2), ("float32", 4)])
def test_models_of_a_pod_are_planned_with_numbers_as_its_flags_have_them(
    monkeypatch: pytest.MonkeyPatch, dtype: str, expected: int
) -> None:
    """A pod has no settings of a router; twice the weights would have it hold half as many models."""
    told: list[int] = []

    class Recorded(ModelWorkers):
        def __init__(self, machine_id: str, make_worker: MakeWorker, parameter_bytes: int, *rest: Any) -> None:
            super().__init__(machine_id, make_worker, parameter_bytes, *rest)
            told.append(parameter_bytes)

        async def run(self, router_address: str) -> Any:
            """End at once."""

    monkeypatch.setattr(server, "ModelWorkers", Recorded)
    settings = AgentSettings(
        worker_role="worker", worker_node_id="pod-1", worker_arguments=f"'--engine=mock' '--dtype={dtype}'"
    )
    asyncio.run(_run_models(settings, {}, "127.0.0.1:1", None))

    assert told == [expected]


def test_what_the_router_assigns_reaches_the_worker_as_its_environment() -> None:
    """Flags of the machine's owner win over it."""
    identity = TlsIdentity(Path("/s/node.crt"), Path("/s/node.key"), Path("/s/ca.crt"), "baton")

    environment = worker_environment("decode", {"engine": "mlx", "router_address": "10.0.0.1:8010"}, identity)

    assert environment == {
        "BATON_DECODE_ENGINE": "mlx",
        "BATON_DECODE_ROUTER_ADDRESS": "10.0.0.1:8010",
        "BATON_DECODE_TLS_CERT_FILE": "/s/node.crt",
        "BATON_DECODE_TLS_KEY_FILE": "/s/node.key",
        "BATON_DECODE_TLS_CA_FILE": "/s/ca.crt",
        "BATON_DECODE_TLS_SERVER_NAME": "baton",
    }


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({}, "worker_role: needed"),
        ({"join_token": "x", "worker_role": "decode"}, "worker_role: comes from the router"),
        ({"join_token": "x", "join_token_file": "y"}, "give one of them"),
        ({"worker_role": "decode", "join_address": "a:1"}, "join_address: without effect"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(flags: dict[str, str], problem: str) -> None:
    """The message names the setting."""
    with pytest.raises(ConfigurationError, match=problem):
        load_settings(AgentSettings, flags)
