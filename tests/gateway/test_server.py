"""Start and stop of a gateway process."""

from __future__ import annotations

import asyncio
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.config.settings import load_settings
from baton.errors import ConfigurationError
from baton.gateway.server import run_gateway
from baton.gateway.settings import GatewaySettings

_PROGRAM = """
import asyncio, logging
from baton.gateway.server import serve
from baton.gateway.settings import GatewaySettings
logging.basicConfig(level=logging.INFO)
asyncio.run(serve(GatewaySettings()))
"""


SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def _start(settings: GatewaySettings) -> None:
    async def main() -> None:
        async with run_gateway(settings):
            raise AssertionError("it started")

    asyncio.run(main())


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_taken_port_is_named_and_nothing_starts(model_dir: Path, protocol: str) -> None:
    """As the plain error that makes the process exit with status 2."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = {"http_port": 0, "grpc_port": 0, f"{protocol}_port": port}
        with pytest.raises(ConfigurationError, match=str(port)):
            _start(GatewaySettings(model_dir=model_dir, **ports))


def test_a_folder_without_tokenizer_is_refused_at_the_start(tmp_path: Path) -> None:
    """Before any port is bound."""
    with pytest.raises(ConfigurationError, match="no tokenizer"):
        _start(GatewaySettings(model_dir=tmp_path))


@pytest.mark.parametrize("limits", ["tiny", "tiny=0", "tiny=-1", "tiny=x", "=3", "tiny=1,tiny=2"])
def test_limits_of_models_that_are_none_are_named(limits: str) -> None:
    """With the part that is wrong."""
    with pytest.raises(ConfigurationError, match=r"model_max_concurrent_requests: expected MODEL=NUMBER, 1 or more"):
        load_settings(GatewaySettings, {"model_max_concurrent_requests": limits})


def test_models_without_a_limit_of_their_own_have_the_others() -> None:
    """Spaces do not matter."""
    settings = GatewaySettings(model_max_concurrent_requests="org/a=3, b = 1024")

    assert settings.limits_of_models == {"org/a": 3, "b": 1024}


def test_the_name_of_a_model_is_its_folders_unless_it_is_given(tmp_path: Path) -> None:
    """Nodes do the same."""
    folder = tmp_path / "llama"
    folder.mkdir()

    assert GatewaySettings(model_dir=folder).served_name == "llama"
    assert GatewaySettings(model_dir=folder, model_name="x").served_name == "x"


@pytest.mark.parametrize(
    ("seconds", "pause_seconds", "age_seconds"), [(0.0, 0.0, 0.0), (0.0, 5.0, 4.0), (300.0, 5.0, 4.0), (2.0, 5.0, 2.0)]
)
def test_connections_of_grpc_grow_as_old_as_is_asked(
    tmp_path: Path, seconds: float, pause_seconds: float, age_seconds: float
) -> None:
    """And no older than lets clients go in the pause before a drain; messages are what clients take."""
    settings = GatewaySettings(model_dir=tmp_path, grpc_connection_seconds=seconds, grpc_connection_grace_seconds=9.0)
    limits = settings.grpc_limits(1 << 20, pause_seconds)
    options = dict(limits.options())

    assert limits.connection_seconds == age_seconds
    assert options.get("grpc.max_connection_age_ms", 0) == age_seconds * 1000
    assert options.get("grpc.max_connection_age_grace_ms", 0) == (9000 if age_seconds else 0)
    assert options["grpc.max_receive_message_length"] == 1 << 20
    assert options["grpc.max_send_message_length"] == 4 << 20


def test_the_process_serves_without_a_router_and_ends_on_sigterm(model_dir: Path) -> None:
    """It is alive but not ready, says why, and its status is 0."""
    settings = {"MODEL_DIR": str(model_dir), "HTTP_PORT": "0", "GRPC_PORT": "0", "ROUTER_ADDRESS": "127.0.0.1:1"}
    environment = os.environ | {f"BATON_GATEWAY_{key}": value for key, value in settings.items()}
    command = [sys.executable, "-c", _PROGRAM]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            port = _listening_port(process)
            assert _get(port, "/health") == (200, b'{"status":"ok"}')
            status, body = _get(port, "/ready")
            assert status == 503
            assert b"router" in body
            assert _healths(_grpc_port(process)) == [SERVING, NOT_SERVING, NOT_SERVING, NOT_SERVING]
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
            assert process.returncode == 0
        finally:
            process.kill()


def _healths(port: int) -> list[int]:
    """Return whether the process is alive, has once been ready, and is: by these a pod is, and requests are, taken."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        names = ("liveness", "started", "", "baton.v1.GenerationService")
        requests = [health_pb2.HealthCheckRequest(service=name) for name in names]
        return [stub.Check(each, timeout=30, wait_for_ready=True).status for each in requests]


def _grpc_port(process: subprocess.Popen[str]) -> int:
    return _found(process, r"grpc_listening .*port=(\d+)")


def _listening_port(process: subprocess.Popen[str]) -> int:
    return _found(process, r"http_listening .*port=(\d+)")


def _found(process: subprocess.Popen[str], pattern: str) -> int:
    assert process.stderr is not None
    for line in process.stderr:
        if match := re.search(pattern, line):
            return int(match[1])
    raise AssertionError("the process ended")


def _get(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    response = connection.getresponse()
    answer = response.status, response.read()
    connection.close()
    return answer
