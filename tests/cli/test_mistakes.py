"""What people get wrong: every mistake ends at once, in one line that says what to do.

With `-s` the test prints a table: what was typed, the line, the exit status and the seconds. All run in this process,
by the entry point that the command has.
"""

from __future__ import annotations

import json
import logging
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from baton.cli.main import main
from baton.demo import checkpoint_dir
from cli.gateway import running_gateway


class Mistake(NamedTuple):
    """Something that is typed, and what is said to it."""

    typed: str
    """After `baton`; {name} stands for what `World` has by that name."""
    says: str
    """Part of the line."""
    status: int = 2
    """Exit status."""
    environment: str = ""
    """NAME=VALUE that is set."""


UP = "up --prefill mock --decode mock --http-port {port} --grpc-port {other_port}"
MISTAKES = (
    Mistake("upp", "No such command 'upp'. Did you mean 'up'? `baton --help` lists what it takes"),
    Mistake("up --http-prot 1", "No such option: --http-prot; did you mean --http-port?"),
    Mistake(
        "up --http-port many",
        "Invalid value for '--http-port' (env var: 'BATON_HTTP_PORT'): Input should be a valid integer",
    ),
    Mistake("up --prefill jax", "--prefill: expected one of torch, mlx, mock, got 'jax'"),
    Mistake("up --log-level loud", "--log-level (BATON_LOG_LEVEL): expected one of debug, info, warning, error"),
    Mistake("up --http-port {taken}", "port {taken} (HTTP) on 127.0.0.1 cannot be used: Address already in use; "),
    Mistake("up --http-port {port} --grpc-port {port}", "port {port} is wanted twice: HTTP and gRPC"),
    Mistake("up --host 203.0.113.1", "on 203.0.113.1 cannot be used: Cannot assign requested address"),
    Mistake(
        "up --model {tmp}/none", "{tmp}/none: there is no such folder, and it is no `org/name[@revision]` of a hub"
    ),
    Mistake("models pull none", "model none: there is no such folder, and it is no `org/name[@revision]` of a hub"),
    Mistake("up --model {tmp}/llama.gguf", "it is a file; give the folder with config.json"),
    Mistake("up --model {tmp}", "it has no config.json"),
    Mistake(f"{UP} --model {{broken_config}}", "config.json is not JSON"),
    Mistake(f"{UP} --model {{family}}", "model_type 'mamba' is not supported; supported are "),
    Mistake(f"{UP} --model {{sizes}}", "config.json: hidden_size: expected a whole number above 0, got null"),
    Mistake(f"{UP} --model {{no_weights}}", "no *.safetensors file: was it fetched whole?"),
    Mistake(f"{UP} --model {{cut}}", "model.safetensors is cut short: "),
    Mistake(f"{UP} --model {{pointer}}", "it is a pointer of Git LFS; run `git lfs pull`"),
    Mistake(f"{UP} --model {{shard}}", "1 of 2 weight files are missing, among them model-2.safetensors: fetch them"),
    Mistake(f"{UP} --model {{no_tokenizer}}", "no tokenizer: expected one of tokenizer.json"),
    Mistake(f"{UP} --model {{broken_tokenizer}}", "tokenizer.json is not JSON"),
    Mistake(
        f"{UP} --prefill torch --decode torch --lora mine={{tmp}}/none", "lora mine: {tmp}/none: no adapter_config.json"
    ),
    Mistake(f"{UP} --lora mine", "lora: expected NAME=FOLDER, got 'mine'"),
    Mistake(f"{UP} --lora mine={{tmp}}", "engine mock computes no adapters"),
    Mistake(
        f"{UP} --decode torch", "device 'gpu': expected cpu, cuda, cuda:N or mps", environment="BATON_DECODE_DEVICE=gpu"
    ),
    Mistake(f"{UP} --decode torch", "device 'cuda:7'", environment="BATON_DECODE_DEVICE=cuda:7"),
    Mistake(UP, "Input should be 'auto', 'float32', 'float16' or 'bfloat16'", environment="BATON_DECODE_DTYPE=fp32"),
    Mistake("up --nodes {tmp}/none.toml", "No such file or directory"),
    Mistake("up --nodes {no_toml}", "--nodes {no_toml}: "),
    Mistake(
        "up --nodes {wrong_key}", "unknown key num_block in --nodes {wrong_key}: node[0]; did you mean num_blocks?"
    ),
    Mistake("up --nodes {wrong_role}", "node[0].role: expected one of prefill, decode, worker, got 'decoder'"),
    Mistake("up --nodes {no_decode}", 'at least one must have role = "decode" or "worker"'),
    Mistake("serve rooter", "unknown role rooter; did you mean router?"),
    Mistake("serve router --prot 1", "unknown flag --prot; did you mean --port?"),
    Mistake(
        "serve router --host 192.0.2.1", "would be believed without a certificate: set tls_cert_file, tls_key_file"
    ),
    Mistake(
        "serve gateway --model-dir {tmp} --host 192.0.2.1", "set api_keys_file; or pass --insecure if none but friends"
    ),
    Mistake(
        "up --host 0.0.0.0 --http-port {port} --grpc-port {other_port}",
        "leave --host out and pass --lan, or pass --insecure",
    ),
    Mistake("serve router --port many", "flag --port: Input should be a valid integer"),
    Mistake("serve router --port", "flag --port needs a value"),
    Mistake("serve router --config {tmp}/none.toml", "{tmp}/none.toml: "),
    Mistake("serve router --config {wrong_table}", "unknown key rooter; expected tables named gateway, router"),
    Mistake("serve prefill", "flag --model-dir (environment variable BATON_PREFILL_MODEL_DIR)"),
    Mistake("chat --url 127.0.0.1:{port} -m hi", "Connection refused; is `baton up` running?", 1),
    Mistake("chat --url ftp://here -m hi", "--url: expected http://host:port, got ftp://here"),
    Mistake("chat --url {gateway}/v1 --model tini -m hi", "'tini' is not served at {gateway}/v1; served are tiny", 1),
    Mistake("chat --url {keyed} -m hi", "HTTP 401: no such key; put one into BATON_API_KEY", 1),
    Mistake("chat --url http://127.0.0.1:{noise} -m hi", "not in HTTP: is it a gRPC port?", 1),
    Mistake("nodes --router 127.0.0.1:{port}", "is `baton up` running there?", 1),
    Mistake("nodes --router {gateway_host}", "the REST API is there; the router's port is another", 1),
    Mistake("nodes --router here", "expected host:port", 1),
    Mistake("agent install --dry-run --jion-token x", "unknown flag --jion-token; did you mean --join-token?"),
    Mistake("authority create {tmp}", "{tmp} is not empty: its files would be replaced"),
    Mistake("authority token {tmp}", "authority: "),
)


class World(NamedTuple):
    """What mistakes are made about."""

    names: dict[str, str]
    """By the name in braces."""

    def fill(self, text: str) -> str:
        """Return a text with what its names stand for."""
        return text.format(**self.names)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Make folders, files, ports and gateways."""
    tmp = tmp_path_factory.mktemp("mistakes")
    (tmp / "llama.gguf").write_bytes(b"GGUF")
    names = {"tmp": str(tmp), **_models(tmp), **_files(tmp)}
    with (
        running_gateway() as gateway,
        running_gateway(key="sk-1") as keyed,
        socket.create_server(("127.0.0.1", 0)) as taken,
        socket.create_server(("127.0.0.1", 0)) as noise,
    ):
        threading.Thread(target=_make_noise, args=(noise,), daemon=True).start()
        ports = {"taken": taken, "noise": noise, "port": None, "other_port": None}
        names |= {name: str(_port(bound)) for name, bound in ports.items()}
        names |= {"gateway": gateway, "keyed": keyed, "gateway_host": gateway.removeprefix("http://")}
        yield World(names)


@pytest.fixture(scope="module")
def table() -> Iterator[list[str]]:
    """Print what has been shown, a line for each mistake."""
    rows: list[str] = []
    yield rows
    print(f"\n{len(rows) // 2} mistakes\n" + "\n".join(rows))


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """Give the process back the logging that commands configure for themselves."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: f"{mistake.typed} {mistake.environment}".strip())
def test_a_mistake_ends_in_one_line_with_the_remedy(
    mistake: Mistake,
    world: World,
    table: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Within two seconds, before anything is started, without a traceback."""
    typed = world.fill(mistake.typed)
    monkeypatch.setattr(sys, "argv", ["baton", *typed.split()])
    if mistake.environment:
        monkeypatch.setenv(*mistake.environment.split("=", 1))
    began = time.process_time()
    with pytest.raises(SystemExit) as ended:
        main()
    seconds = time.process_time() - began
    line = capfd.readouterr().err
    table.append(f"{mistake.environment + ' ' if mistake.environment else ''}baton {typed}")
    table.append(f"    {line.rstrip()} [exit {ended.value.code}, {seconds:.2f} s]")

    assert world.fill(mistake.says) in line
    assert line.startswith("error: ")
    assert line.count("\n") == 1
    assert ended.value.code == mistake.status
    assert seconds < 2


def test_there_are_more_than_thirty_six() -> None:
    """Each another one."""
    assert len({(mistake.typed, mistake.environment) for mistake in MISTAKES}) == len(MISTAKES) > 36


def _port(bound: socket.socket | None) -> int:
    """Return the port of a socket, or one that is free."""
    if bound is not None:
        return int(bound.getsockname()[1])
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _make_noise(server: socket.socket) -> None:
    """Answer as a gRPC port does, until the socket is closed."""
    try:
        while True:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"\0\0\x12\4\0\0\0\0\0\0\3\0\0\0\x64" + b"\0" * 9)
    except OSError:
        return


def _models(tmp: Path) -> dict[str, str]:
    """Make copies of the demo model, each with a fault."""
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    index = json.dumps({"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}).encode()
    weights = "model.safetensors"
    faults: dict[str, Callable[[Path], object]] = {
        "broken_config": lambda folder: (folder / "config.json").write_text("{"),
        "family": lambda folder: _configure(folder, model_type="mamba"),
        "sizes": lambda folder: _configure(folder, hidden_size=None),
        "no_weights": lambda folder: (folder / weights).unlink(),
        "cut": lambda folder: (folder / weights).write_bytes((folder / weights).read_bytes()[:-1]),
        "pointer": lambda folder: (folder / weights).write_bytes(pointer),
        "shard": lambda folder: (folder / f"{weights}.index.json").write_bytes(index),
        "no_tokenizer": lambda folder: (folder / "tokenizer.json").unlink(),
        "broken_tokenizer": lambda folder: (folder / "tokenizer.json").write_text('{"model"'),
    }
    for name, spoil in faults.items():
        shutil.copytree(checkpoint_dir(), tmp / name)
        spoil(tmp / name)
    return {name: str(tmp / name) for name in faults}


def _configure(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _files(tmp: Path) -> dict[str, str]:
    node = '[[node]]\nrole = "{}"\nengine = "mock"\n'
    texts = {
        "no_toml": "[[node",
        "wrong_key": f"{node.format('decode')}num_block = 5",
        "wrong_role": node.format("decoder"),
        "no_decode": node.format("prefill"),
        "wrong_table": "[rooter]\nport = 1",
    }
    for name, text in texts.items():
        (tmp / f"{name}.toml").write_text(text)
    return {name: str(tmp / f"{name}.toml") for name in texts}
