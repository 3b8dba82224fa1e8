"""`baton models`, and a model that `baton up` is given by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from baton.cli.app import make_app
from baton.cli.models import pull
from baton.cli.terminal.console import make_console
from baton.engine.checkpoint.model_folder import read_checkpoint
from baton.gateway.settings import GatewaySettings
from checkpoints import checkpoint
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
    assert "None is here yet" in run(app, ["models", "list"]).stdout

    pulled = run(app, ["models", "pull", "org/tiny"])

    assert (Path(pulled.stdout.strip()) / "config.json").is_file()
    assert f"fetched org/tiny@{COMMIT}: 1.05 MB" in pulled.stderr.replace("\n", "")
    listed = run(app, ["models", "list"]).stdout
    assert "org/tiny" in listed
    assert COMMIT[:12] in listed
    assert "1.05 MB" in listed


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
