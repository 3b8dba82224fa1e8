"""The wheel alone, and with each extra, runs what it is for, installed by the line that the lack prints.

`make matrix` runs it. Every environment begins with the wheel alone. BATON_WHEEL: a wheel that was built before.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from baton.cli.bench import BENCHMARKS
from install_lines import documented_lines
from system.plan import free_ports

pytestmark = [
    pytest.mark.skipif("BATON_MATRIX" not in os.environ, reason="makes virtual environments: run `make matrix`"),
    pytest.mark.timeout(1800),
]

_ROOT = Path(__file__).resolve().parents[2]
_START_SECONDS = 120.0
_STOP_SECONDS = 60.0
_POLL_SECONDS = 0.1
_SITE_PACKAGES = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"

_LACKING: Mapping[str, Sequence[str]] = {
    "gateway": ("serve", "gateway", "--model-dir=DEMO"),
    "torch": ("serve", "decode", "--model-dir=DEMO", "--engine=torch", "--port=0"),
    "mlx": ("serve", "decode", "--model-dir=DEMO", "--engine=mlx", "--port=0"),
    "agent": ("authority", "create", "deployment"),
    "bench": ("bench", "serve", "--help"),
    "up": ("up",),
}
"""Commands that need an extra, or several, and say so; DEMO is the folder of the demo model."""
_PRINT = "from baton.installation import install_line; print(install_line({!r}))"
"""For extras whose lack only a request or a device shows."""


class Environments:
    """Virtual environments with Baton's wheel, and what a command that lacks something tells its user to install.

    Args:
        folder: Where they are made.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._wheel = Path(os.environ["BATON_WHEEL"]).resolve() if "BATON_WHEEL" in os.environ else None

    def with_extra(self, extra: str) -> Path:
        """Return the environment of an extra, or of a command that needs several; empty: of the wheel alone."""
        environment = self._folder / (extra or "base")
        if not environment.exists():
            self.install(environment, f"pip install '{self.wheel()}'")
            if extra:
                self.install(environment, printed_line(environment, extra))
        return environment

    def install(self, environment: Path, line: str, folder: Path | None = None) -> None:
        """Run a line that installs something, as the user of an environment would who has activated it."""
        if not environment.exists():
            _run(sys.executable, "-m", "venv", environment)
        variables = {
            **_clean_environment(),
            "PATH": f"{environment / 'bin'}:{os.environ['PATH']}",
            "PIP_CONSTRAINT": str(_ROOT / "constraints.txt"),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        done = subprocess.run(line, shell=True, env=variables, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        _run(environment / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "check")

    def wheel(self) -> Path:
        """Return Baton's wheel."""
        if self._wheel is None:
            wheels = self._folder / "wheels"
            _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels, _ROOT)
            [self._wheel] = wheels.glob("*.whl")
        return self._wheel


def printed_line(environment: Path, extra: str) -> str:
    """Return the line that a command prints that lacks an extra; it says so in few words, and ends with status 2."""
    if extra not in _LACKING:
        return _run(environment / "bin" / "python", "-c", _PRINT.format(extra)).strip()
    arguments = [each.replace("DEMO", str(demo_of(environment))) for each in _LACKING[extra]]
    command = (environment / "bin" / "baton", *arguments)
    done = subprocess.run(
        command, env=_clean_environment(), cwd=environment, capture_output=True, text=True, timeout=_START_SECONDS
    )
    [error] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    match = re.search(r"(?:\S+ -m )?pip install .+", error)
    assert done.returncode == 2, done.stderr
    assert match is not None, done.stderr
    return match[0]


class Cell(NamedTuple):
    """A role in the environment of an extra."""

    extra: str
    """Of pyproject.toml; empty: the wheel alone."""
    role: str
    """Its word after `baton serve`."""
    engine: str = ""
    """Of a node."""


_ROLES = (
    *(Cell("", role) for role in ("router", "cache-index", "agent")),
    *(Cell("", role, "mock") for role in ("prefill", "decode", "worker")),
    Cell("torch", "prefill", "torch"),
    Cell("mlx", "prefill", "mlx"),
    Cell("agent", "agent"),
)
_ANSWERS = (
    Cell("", "decode", "mock"),
    Cell("worker", "decode", "mock"),
    Cell("mock", "decode", "mock"),
    Cell("torch", "decode", "torch"),
    Cell("cuda", "decode", "torch"),
    Cell("mlx", "decode", "mlx"),
)
_COMMANDS = ("--help", "--version", "doctor --help", "up --help", "bench --help")


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environments]:
    """Yield the environments of this module's tests; they hold gigabytes and go with the last test."""
    folder = tmp_path_factory.mktemp("environments")
    yield Environments(folder)
    shutil.rmtree(folder)


@pytest.mark.parametrize("arguments", _COMMANDS)
def test_a_command_speaks_in_an_environment_with_the_wheel_alone(arguments: str, environments: Environments) -> None:
    """Commands that need more than others hinder nobody who asks for something else."""
    assert "baton" in _run(environments.with_extra("") / "bin" / "baton", *arguments.split()).lower()


@pytest.mark.parametrize("cell", _ROLES, ids=lambda cell: f"{cell.extra or 'wheel'}-{cell.role}")
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


@pytest.mark.parametrize("cell", _ANSWERS, ids=lambda cell: cell.extra or "wheel")
def test_a_node_with_its_extra_alone_gives_a_first_answer(cell: Cell, environments: Environments) -> None:
    """By a router of the wheel alone and a gateway of its extra; engines answer what the demo model has learned."""
    node, gateway = environments.with_extra(cell.extra), environments.with_extra("gateway")
    ports = free_ports(["router", "node", "http", "grpc"])
    router = f"--router-address=127.0.0.1:{ports['router']}"
    model = f"--model-dir={demo_of(node)}"
    node_flags = (f"--port={ports['node']}", model, f"--engine={cell.engine}", router, "--num-blocks=64")
    gateway_flags = (f"--http-port={ports['http']}", f"--grpc-port={ports['grpc']}", model, router)

    with ExitStack() as stack:
        processes = [
            stack.enter_context(_serving(environments.with_extra(""), "router", (f"--port={ports['router']}",))),
            stack.enter_context(_serving(node, cell.role, node_flags)),
            stack.enter_context(_serving(gateway, "gateway", gateway_flags)),
        ]
        _wait_until(lambda: _is_ready(ports["http"]), *processes)
        if cell.extra in ("worker", "mock"):
            schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["yes", "no"]}}}
            assert _ask(ports["http"], response_format=schema) in ('"yes"', '"no"')
        elif cell.engine == "mock":
            assert _ask(ports["http"])
        else:
            assert _ask(ports["http"]) == "12 + 30 = 42"


def test_up_answers_with_the_demo_of_the_wheel(environments: Environments) -> None:
    """The wheel alone names all that `baton up` lacks in one line; after that it starts, and adds."""
    environment, ports = environments.with_extra("up"), free_ports(["http", "grpc"])
    flags = ("up", f"--http-port={ports['http']}", f"--grpc-port={ports['grpc']}")

    with _running(environment, *flags) as process:
        _wait_until(lambda: _is_ready(ports["http"]), process)
        answer = _ask(ports["http"])
        process.terminate()

        assert process.wait(_STOP_SECONDS) == 0
    assert answer == "12 + 30 = 42"


@pytest.mark.parametrize("line", [line for line in documented_lines() if "EXTRAS" not in line])
def test_a_line_of_a_document_installs_what_its_page_goes_on_with(line: str, environments: Environments) -> None:
    """Beside the wheel that `make wheel` made: here a Mac's, which joins and decodes by MLX."""
    environment, wheel = environments.with_extra("").parent / "documented", environments.wheel()
    environments.install(environment, line, wheel.parent)
    port = free_ports(["role"])["role"]

    assert "ca.crt" in _run(environment / "bin" / "baton", "authority", "create", environment / "deployment")
    flags = (f"--port={port}", f"--model-dir={demo_of(environment)}", "--engine=mlx", "--num-blocks=64")
    with _serving(environment, "decode", flags) as process:
        _wait_until_healthy(process, port)


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
        *(f"--port={ports['agent']}", f"--worker-port={ports['worker']}"),
    )

    with ExitStack() as stack:
        router = stack.enter_context(_serving(environment, "router", router_flags))
        agent = stack.enter_context(_serving(environment, "agent", agent_flags))
        _wait_until(lambda: bool(list(state.glob("*.crt"))), router, agent)

    assert list(state.glob("*.key"))


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_starts_with_the_extra_bench_alone(name: str, environments: Environments) -> None:
    """It prints its options."""
    text = _run(environments.with_extra("bench") / "bin" / "baton", "bench", name, "--help")

    assert f"baton bench {name}" in text


def demo_of(environment: Path) -> Path:
    """Return the folder of the demo model in an environment."""
    return environment / _SITE_PACKAGES / "baton" / "demo" / "checkpoint"


def _flags_of(cell: Cell, environment: Path, ports: Mapping[str, int]) -> Sequence[str]:
    port = f"--port={ports['role']}"
    if cell.role == "agent":
        return port, "--worker-role=prefill", f"--worker-port={ports['other']}"
    if cell.engine:
        return port, f"--model-dir={demo_of(environment)}", f"--engine={cell.engine}", "--num-blocks=64"
    return (port,)


def _is_ready(http_port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/ready", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _ask(http_port: int, **fields: Any) -> str:
    url = f"http://127.0.0.1:{http_port}"
    with urllib.request.urlopen(f"{url}/v1/models", timeout=60) as response:
        model = json.load(response)["data"][0]["id"]
    messages = [{"role": "user", "content": "What is 12 + 30?"}]
    body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 64, **fields}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])


@contextmanager
def _serving(environment: Path, role: str, flags: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    with _running(environment, "serve", role, *flags) as process:
        yield process


@contextmanager
def _running(environment: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    log = (environment / f"{'-'.join(arguments[:2])}.log".replace("--", "")).open("w+b")
    process = subprocess.Popen(
        (environment / "bin" / "baton", *arguments), env=_clean_environment(), stdout=log, stderr=log
    )
    try:
        yield process
    except BaseException:
        log.seek(0)
        print(log.read().decode())
        raise
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
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
