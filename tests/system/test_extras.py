"""What `pip install baton` and each extra alone bring suffices for the roles that they are for (`make matrix`)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from baton.cli.bench import BENCHMARKS
from system.plan import free_ports

pytestmark = [
    pytest.mark.skipif("BATON_MATRIX" not in os.environ, reason="makes virtual environments: run `make matrix`"),
    pytest.mark.timeout(1200),
]

_ROOT = Path(__file__).resolve().parents[2]
_START_SECONDS = 120.0
_STOP_SECONDS = 60.0
_POLL_SECONDS = 0.1
_SITE_PACKAGES = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


class Environments:
    """Virtual environments with Baton's wheel and one extra each, made when they are asked for.

    Args:
        folder: Where they are made.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._wheel: Path | None = None

    def with_extra(self, extra: str) -> Path:
        """Return the environment of an extra; empty: of the base installation."""
        environment = self._folder / (extra or "base")
        if not environment.exists():
            _run(sys.executable, "-m", "venv", environment)
            requirement = f"baton[{extra}] @ {self._built_wheel().as_uri()}" if extra else str(self._built_wheel())
            pip = (environment / "bin" / "python", "-m", "pip", "--disable-pip-version-check")
            _run(*pip, "install", "--quiet", "--constraint", _ROOT / "constraints.txt", requirement)
            _run(*pip, "check")
        return environment

    def _built_wheel(self) -> Path:
        if self._wheel is None:
            wheels = self._folder / "wheels"
            _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels, _ROOT)
            [self._wheel] = wheels.glob("baton-*.whl")
        return self._wheel


class Cell(NamedTuple):
    """A role in the environment of an extra."""

    extra: str
    """Of pyproject.toml; empty: the base installation."""
    role: str
    """Its word after `baton serve`."""
    engine: str = ""
    """Of a node."""


_CELLS = (
    Cell("", "router"),
    Cell("", "cache-index"),
    Cell("", "agent"),
    Cell("gateway", "gateway"),
    *(
        Cell(extra, role, engine)
        for extra, engine in {"worker": "mock", "mock": "mock", "torch": "torch", "mlx": "mlx"}.items()
        for role in ("prefill", "decode")
    ),
    Cell("kubernetes", "router"),
    Cell("kubernetes", "cache-index"),
    Cell("agent", "agent"),
)


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environments]:
    """Yield the environments of this module's tests; they hold gigabytes and go with the last test."""
    folder = tmp_path_factory.mktemp("environments")
    yield Environments(folder)
    shutil.rmtree(folder)


@pytest.mark.parametrize("cell", _CELLS, ids=lambda cell: f"{cell.extra or 'base'}-{cell.role}")
def test_a_role_starts_in_an_environment_with_its_extra_alone(cell: Cell, environments: Environments) -> None:
    """It prints its flags, becomes healthy, and ends well when it is told to stop."""
    environment = environments.with_extra(cell.extra)
    ports = free_ports(["role", "other"])

    help_text = _run(environment / "bin" / "baton", "serve", cell.role, "--help")
    with _serving(environment, cell.role, _flags_of(cell, environment, ports)) as process:
        _wait_until_healthy(process, ports["role"])
        process.terminate()

        assert process.wait(_STOP_SECONDS) == 0
    assert f"baton serve {cell.role}" in help_text


def test_a_machine_joins_with_the_extra_agent_alone(environments: Environments, tmp_path: Path) -> None:
    """Authority, token, the router's join service and the agent that asks it for a certificate need that extra."""
    environment, ports = environments.with_extra("agent"), free_ports(["role", "join", "agent", "worker"])
    files, state, program = tmp_path / "deployment", tmp_path / "state", environment / "bin" / "baton"
    _run(program, "authority", "create", files)
    token = _run(program, "authority", "token", files).strip()
    (files / "assignments.toml").write_text('[[node]]\nnode_id = "*"\nrole = "prefill"\nengine = "mock"\n')
    router_flags = (
        *(f"--port={ports['role']}", f"--join-port={ports['join']}", f"--join-secret-file={files}/join.secret"),
        *(f"--join-authority-key-file={files}/ca.key", f"--join-assignments-file={files}/assignments.toml"),
        *(f"--tls-cert-file={files}/tls.crt", f"--tls-key-file={files}/tls.key", f"--tls-ca-file={files}/ca.crt"),
    )
    agent_flags = (
        *(f"--join-token={token}", f"--join-address=127.0.0.1:{ports['join']}", f"--state-dir={state}"),
        *(f"--port={ports['agent']}", f"--worker-port={ports['worker']}", "--no-profile-machine"),
    )

    with ExitStack() as stack:
        router = stack.enter_context(_serving(environment, "router", router_flags))
        agent = stack.enter_context(_serving(environment, "agent", agent_flags))
        _wait_until(lambda: bool(list(state.glob("*.crt"))), router, agent)

    assert list(state.glob("*.key"))


def test_the_extra_kubernetes_brings_the_client_of_nodes_that_follow_a_service(environments: Environments) -> None:
    """What a node with a `kubernetes://` address makes needs that extra, and nothing of an engine's."""
    script = (
        "from kubernetes.client import Configuration;"
        "from baton.discovery.kubernetes_api import KubernetesEndpointApi;"
        "from baton.discovery.target import parse_target;"
        "KubernetesEndpointApi(Configuration(), parse_target('kubernetes://router.default:8010'))"
    )

    _run(environments.with_extra("kubernetes") / "bin" / "python", "-c", script)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_starts_with_the_extra_bench_alone(name: str, environments: Environments) -> None:
    """It prints its options."""
    text = _run(environments.with_extra("bench") / "bin" / "baton", "bench", name, "--help")

    assert f"baton bench {name}" in text


def _flags_of(cell: Cell, environment: Path, ports: dict[str, int]) -> Sequence[str]:
    model_dir = environment / _SITE_PACKAGES / "baton" / "demo" / "checkpoint"
    if cell.role == "gateway":
        return f"--model-dir={model_dir}", f"--grpc-port={ports['role']}", f"--http-port={ports['other']}"
    port = f"--port={ports['role']}"
    if cell.role == "agent":
        return port, "--worker-role=prefill", f"--worker-port={ports['other']}"
    if cell.engine:
        return port, f"--model-dir={model_dir}", f"--engine={cell.engine}", "--num-blocks=64"
    return (port,)


@contextmanager
def _serving(environment: Path, role: str, flags: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    log = (environment / f"{role}.log").open("w+b")
    process = subprocess.Popen(
        (environment / "bin" / "baton", "serve", role, *flags), env=_clean_environment(), stdout=log, stderr=log
    )
    try:
        yield process
    except BaseException:
        log.seek(0)
        print(log.read().decode())
        raise
    finally:
        process.kill()
        process.wait(_STOP_SECONDS)
        log.close()


def _wait_until_healthy(process: subprocess.Popen[bytes], port: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = HealthStub(channel)

        def is_healthy() -> bool:
            try:
                answer = stub.Check(HealthCheckRequest(), timeout=_POLL_SECONDS * 10)
            except grpc.RpcError:
                return False
            return bool(answer.status == HealthCheckResponse.SERVING)

        _wait_until(is_healthy, process)


def _wait_until(is_true: Callable[[], bool], *processes: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not is_true():
        assert all(process.poll() is None for process in processes), "a role has ended"
        assert time.monotonic() < deadline, "a role does not start"
        time.sleep(_POLL_SECONDS)


def _run(*arguments: str | Path) -> str:
    done = subprocess.run(arguments, env=_clean_environment(), capture_output=True, text=True)
    assert done.returncode == 0, f"{arguments}\n{done.stdout}{done.stderr}"
    return done.stdout


def _clean_environment() -> dict[str, str]:
    """Return this process's variables without those by which Python finds modules elsewhere."""
    return {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    }
