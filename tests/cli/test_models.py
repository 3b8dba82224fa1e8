"""`baton models`, and a model that `baton up` is given by name."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from baton.cli.app import make_app
from baton.cli.cluster.model_orders import print_models
from baton.cli.models import pull
from baton.cli.terminal.console import make_console
from baton.engine.checkpoint.model_folder import read_checkpoint
from baton.gateway.settings import GatewaySettings
from baton.internal.v1.model_service_pb2 import DesiredModel, ModelState
from baton.weights.store import WeightStore
from checkpoints import checkpoint
from weight_transfer.test_four_machines import FETCHED, contents, folder_with, machine
from weights.fake_hub import COMMIT, FakeHub, serving
from weights.test_hub import FILES, point_at


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Return a hub that is asked, and an empty cache."""
    with serving(FakeHub(FILES)) as fake:
        point_at(fake.url, tmp_path, monkeypatch)
        yield fake


def test_a_model_is_pulled_and_listed(hub: FakeHub) -> None:
    """Its folder goes to stdout, for scripts; the list has its name, commit and size."""
    app, run = make_app(["models"]), CliRunner().invoke
    assert "cache of this machine is empty" in run(app, ["models", "list"]).stdout

    pulled = run(app, ["models", "pull", "org/tiny"])

    assert (Path(pulled.stdout.strip()) / "config.json").is_file()
    assert f"fetched org/tiny@{COMMIT}: 1.05 MB" in pulled.stderr.replace("\n", "")
    listed = run(app, ["models", "list"]).stdout
    assert "org/tiny" in listed
    assert COMMIT[:12] in listed
    assert "1.05 MB" in listed


@pytest.mark.parametrize("command", [("up",), ("models", "load"), ("models", "pull"), ("models", "digest")])
def test_a_revision_is_told_of(command: tuple[str, ...]) -> None:
    """Brackets are no markup."""
    told = CliRunner().invoke(make_app(command[:1]), [*command, "--help"], env={"COLUMNS": "200"}).stdout

    assert "name[@revision]" in told


def test_a_problem_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever brackets it has."""
    print_models([ModelState(desired=DesiredModel(name="[b]"), problem="no `org/name[@revision]` of a hub")])

    assert {"[b]", "`org/name[@revision]`"} <= set(capsys.readouterr().out.split())


def test_a_setting_names_a_model_of_a_hub(hub: FakeHub) -> None:
    """It is served under the hub's name, from the folder that `pull` brings."""
    settings = GatewaySettings(model_dir="org/tiny")  # type: ignore[arg-type]

    assert settings.served_name == "org/tiny"
    assert settings.model_dir == pull("org/tiny", make_console())


def test_a_digest_is_printed_of_some_rows_or_all() -> None:
    """The sampled one is what nodes compare."""
    app, run = make_app(["models"]), CliRunner().invoke
    folder = checkpoint("llama")

    sampled, full = (run(app, ["models", "digest", str(folder), *more]).stdout.strip() for more in ([], ["--full"]))

    assert sampled == read_checkpoint(folder).weights_digest()
    assert full == read_checkpoint(folder).weights_digest(is_full=True) != sampled


def test_a_model_is_pulled_from_another_machine_listed_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no other model needs is deleted; who gave nothing is named."""
    monkeypatch.setenv("BATON_WEIGHTS_DIR", str(tmp_path / "store"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    app, run, ready, done = make_app(["models"]), CliRunner().invoke, threading.Event(), threading.Event()
    folder, addresses = folder_with(tmp_path / "tiny"), list[str]()

    async def give() -> None:
        async with machine(WeightStore(tmp_path / "other"), {"tiny": folder}) as (address, _):
            addresses.append(address)
            ready.set()
            await asyncio.to_thread(done.wait)

    with ThreadPoolExecutor(1) as threads:
        giving = threads.submit(asyncio.run, give())
        ready.wait(20)
        try:
            pulled = run(app, ["models", "pull", "tiny", "--from", addresses[0]])
        finally:
            done.set()
        giving.result()

    assert contents(Path(pulled.stdout.strip())) == FETCHED
    assert "tiny" in run(app, ["models", "list"]).stdout
    assert "1.05 MB deleted" in run(app, ["models", "remove", "tiny"]).stdout
    assert "cache of this machine is empty" in run(app, ["models", "list"]).stdout
    assert "it is not in the store" in str(run(app, ["models", "remove", "tiny"]).exception)
