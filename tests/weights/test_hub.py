"""Models of a hub, against a hub on this machine that huggingface_hub asks."""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from baton.errors import ConfigurationError
from baton.weights import store as store_module
from baton.weights.hub import FetchProgress, model_folder
from baton.weights.model_name import served_name_of
from weights.fake_hub import COMMIT, FakeHub, serving

FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b'{"model": {}}',
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors.index.json": json.dumps({"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}).encode(),
    "a.safetensors": bytes(range(256)) * 4096,
    "b.safetensors": b"b" * 1000,
    "consolidated.safetensors": b"c" * 5000,
    "original/params.json": b"{}",
    "model.gguf": b"g" * 3000,
    "README.md": b"read me",
}
WANTED = sorted(FILES.keys() - {"consolidated.safetensors", "original/params.json", "model.gguf", "README.md"})


def point_at(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the hub's library ask at a URL, without a token, and keep what it gets in a folder."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("BATON_WEIGHTS_DIR", str(folder / "store"))
    monkeypatch.setenv("HF_ENDPOINT", url)
    for name, value in {
        "ENDPOINT": url,
        "HUGGINGFACE_CO_URL_TEMPLATE": url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(folder / "cache"),
        "HF_TOKEN_PATH": str(folder / "token"),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,
    }.items():
        monkeypatch.setattr(constants, name, value)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Return a hub that is asked, and an empty cache."""
    with serving(FakeHub(FILES)) as fake:
        point_at(fake.url, tmp_path, monkeypatch)
        yield fake


def test_what_counts_is_fetched_and_told(hub: FakeHub) -> None:
    """The weights of the index, configuration and tokenizer come; other formats and copies do not."""
    told: list[FetchProgress] = []

    folder = model_folder("org/tiny", told.append)

    assert sorted(path.name for path in folder.iterdir()) == WANTED
    assert {name: (folder / name).read_bytes() for name in WANTED} == {name: FILES[name] for name in WANTED}
    assert served_name_of(folder) == "org/tiny"
    assert folder.name == COMMIT
    total = sum(len(FILES[name]) for name in WANTED)
    assert told[-1].done_bytes == told[-1].total_bytes == total
    assert str(told[-1].name) == f"org/tiny@{COMMIT}"
    assert [each.done_bytes for each in told] == sorted(each.done_bytes for each in told)


def test_a_commit_that_is_here_asks_nobody(hub: FakeHub) -> None:
    """Another time a branch costs a question and no file, a commit nothing at all."""
    folder = model_folder("org/tiny")
    hub.asked.clear()

    assert model_folder("hf://org/tiny") == folder
    assert hub.file_requests == []
    hub.asked.clear()
    assert model_folder(f"org/tiny@{COMMIT}") == folder
    assert hub.asked == []


def test_what_broke_goes_on_where_it_broke(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that ends within a file costs what had not come."""
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100_000)  # as much is written at once
    hub.cut_at["a.safetensors"] = 700_000

    folder = model_folder("org/tiny")

    assert (folder / "a.safetensors").read_bytes() == FILES["a.safetensors"]
    assert hub.sent_bytes == sum(len(FILES[name]) for name in WANTED)


def test_a_gated_model_names_the_page_and_opens_by_a_token(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who lacks the terms hears where they are; the token's holder is served."""
    hub.token, hub.is_gated = "hf_right", True

    with pytest.raises(ConfigurationError, match=f"gated: accept its terms at {hub.url}/org/tiny.*HF_TOKEN"):
        model_folder("org/tiny")
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert (model_folder("org/tiny") / "config.json").is_file()


def test_a_wrong_token_is_named(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a private model nobody says that it exists."""
    hub.token = "hf_right"
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")

    with pytest.raises(ConfigurationError, match="does not know the token in HF_TOKEN, or the model"):
        model_folder("org/tiny")


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("org/other", "shows no such model; a private one needs a token in HF_TOKEN"),
        ("org/tiny@v9", "has the model, but no revision 'v9'"),
        ("org/tiny@" + "f" * 40, "no revision"),
    ],
)
def test_what_is_not_there_is_named(hub: FakeHub, name: str, cause: str) -> None:
    """Model and revision are told apart."""
    with pytest.raises(ConfigurationError, match=cause):
        model_folder(name)


def test_without_a_hub_what_is_here_is_served(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, or where the hub is away: what is here whole is found, what is not is said."""
    folder = model_folder("org/tiny")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert model_folder("org/tiny") == folder
    (folder / "b.safetensors").unlink()
    with pytest.raises(ConfigurationError, match=r"not here whole .*HF_HUB_OFFLINE forbids"):
        model_folder("org/tiny")
    with pytest.raises(ConfigurationError, match="not here whole"):
        model_folder("org/unknown")


@pytest.mark.parametrize("status", [500, 503])
def test_a_hub_that_fails_is_named(hub: FakeHub, status: int) -> None:
    """Its status is told, and its address."""
    hub.status = status

    with pytest.raises(ConfigurationError, match=f"{hub.url}.* {status}"):
        model_folder("org/tiny")


def test_a_hub_that_is_away_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody listens."""
    point_at("http://127.0.0.1:1", tmp_path, monkeypatch)

    with pytest.raises(ConfigurationError, match=r"http://127\.0\.0\.1:1 does not give it: .*refused"):
        model_folder("org/tiny")


def test_what_is_here_is_served_while_the_hub_is_away(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A branch is then the commit that it was; the log says so."""
    folder = model_folder("org/tiny")
    hub.status = 503

    assert model_folder("org/tiny") == folder
    assert f"hub_away model=org/tiny@main commit={COMMIT}" in caplog.text


def test_a_disk_that_is_too_small_is_told_before_the_first_byte(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing and what is free are numbers, and no weight is asked for."""
    usage = namedtuple("usage", "free")(1 << 30)
    monkeypatch.setattr(store_module.shutil, "disk_usage", lambda path: usage)

    with pytest.raises(ConfigurationError, match=r"0\.00105 GB are missing here.*has 1\.07 GB"):
        model_folder("org/tiny")
    assert not any("a.safetensors" in each for each in hub.file_requests)


def test_a_repository_without_safetensors_is_refused_by_what_it_has(hub: FakeHub) -> None:
    """GGUF is not read: before anything is fetched."""
    hub.files = {"config.json": b"{}", "model.gguf": b"g"}

    with pytest.raises(ConfigurationError, match=r"no \*\.safetensors file, only model\.gguf"):
        model_folder("org/tiny")
    assert hub.file_requests == []


def test_a_folder_wins_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is asked for what lies here."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "tiny").mkdir(parents=True)

    assert model_folder("org/tiny") == Path("org/tiny")
    assert served_name_of(Path("org/tiny")) == "tiny"


@pytest.mark.parametrize("text", ["nowhere", "./org/tiny", "a/b/c", "org/tiny@", "org/ti ny"])
def test_what_is_neither_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Both spellings are told."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"no such folder, and it is no `org/name\[@revision\]` of a hub"):
        model_folder(text)
