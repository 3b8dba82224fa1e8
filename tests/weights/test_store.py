"""The store of a machine: what is kept, found, shared among models and deleted."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from baton.errors import InvalidFieldError, NotFoundError, UnavailableError
from baton.weights import manifest as manifest_module
from baton.weights.manifest import FileDigest, Manifest, make_manifest
from baton.weights.model_name import served_name_of
from baton.weights.store import WeightStore, read_range

COMMIT = "a" * 40


def digest(name: str, content: bytes) -> FileDigest:
    """Return what a file would be wanted as."""
    return FileDigest(name, len(content), hashlib.sha256(content).hexdigest())


def keep(store: WeightStore, name: str, revision: str, **files: bytes) -> Manifest:
    """Have a store hold a model."""
    digests = [digest(f"{file}.safetensors", content) for file, content in files.items()]
    manifest = make_manifest(name, revision, digests)
    store.begin(manifest, {})
    for wanted in digests:
        with store.receive(wanted, waits=False) as arriving:
            if arriving is not None:
                arriving.write(files[wanted.name.partition(".")[0]])
                assert arriving.finish()
    store.finish(manifest)
    return manifest


def test_models_are_found_by_name_and_revision(tmp_path: Path) -> None:
    """A hub's keeps its name in its path; what came last answers where none is asked for."""
    store = WeightStore(tmp_path)
    keep(store, "org/m", COMMIT, a=b"one")
    keep(store, "org/m", "b" * 40, a=b"two")
    mine = keep(store, "mine", "", a=b"one")

    folder = store.find(f"org/m@{COMMIT}")
    assert folder is not None
    assert (folder / "a.safetensors").read_bytes() == b"one"
    assert served_name_of(folder) == "org/m"
    assert store.find("org/m") != folder
    assert store.find("org/other") is None
    assert served_name_of(store.folder_of(mine)) == "mine"


def test_what_no_model_needs_is_deleted(tmp_path: Path) -> None:
    """Files that another model has, and those that come, stay."""
    store = WeightStore(tmp_path)
    keep(store, "org/m", COMMIT, a=b"shared", b=b"own")
    keep(store, "org/n", "b" * 40, a=b"shared")
    coming = digest("c.safetensors", b"coming")

    with store.receive(coming, waits=False) as arriving:
        assert arriving is not None
        arriving.write(b"com")
        assert store.collect() == 0
        assert store.remove("org/m")
        assert not store.remove("org/m")
        assert store.collect() == len(b"own")
        assert store.held_bytes(coming) == 3
    assert store.collect() == 3
    assert store.find("org/n") is not None
    assert (store.folder_of(store.manifests()[0]) / "a.safetensors").read_bytes() == b"shared"


def test_one_process_at_a_time_brings_a_file(tmp_path: Path) -> None:
    """Others read what is there; the next one goes on with it, hashed again."""
    store, wanted = WeightStore(tmp_path), digest("a.safetensors", b"abcdef")
    store.begin(make_manifest("m", "", [wanted]), {})

    with store.receive(wanted, waits=False) as first:
        assert first is not None
        first.write(b"abc")
        with pytest.raises(UnavailableError, match="another process"), store.receive(wanted, waits=False):
            pass
        with store.open(wanted.sha256) as file:
            assert read_range(file, 1, 10) == (b"bc", True)
            assert read_range(file, 3, 10) == (b"", True)
    with store.open(wanted.sha256) as file:
        assert read_range(file, 3, 10) == (b"", False)
    with store.receive(wanted, waits=False) as second:
        assert second is not None
        assert second.num_bytes == 3
        second.write(b"def")
        assert second.finish()
    with store.receive(wanted, waits=False) as third:
        assert third is None


@pytest.mark.parametrize("content", [b"abcdeX", b"abc", b"abcdefg"])
def test_other_bytes_are_refused(content: bytes, tmp_path: Path) -> None:
    """Nothing of them is left."""
    store, wanted = WeightStore(tmp_path), digest("a.safetensors", b"abcdef")
    store.begin(make_manifest("m", "", [wanted]), {})

    with store.receive(wanted, waits=False) as arriving:
        assert arriving is not None
        arriving.write(content)
        assert not arriving.finish()
    assert store.held_bytes(wanted) == 0
    with pytest.raises(NotFoundError), store.open("f" * 64):
        pass


def test_a_folder_is_hashed_once_while_it_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by the next process; a file that changes has another digest."""
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"one")
    (folder / "config.json").write_bytes(b"{}")
    (folder / "pytorch_model.bin").write_bytes(b"other")
    first = WeightStore(tmp_path / "store").adopt("m", "", folder)
    hashed: list[object] = []
    sha256 = hashlib.sha256
    monkeypatch.setattr(manifest_module.hashlib, "sha256", lambda *data: hashed.append(data) or sha256(*data))

    again = WeightStore(tmp_path / "store")
    assert again.adopt("m", COMMIT, folder).files == first.files
    assert hashed == []
    assert [file.name for file in first.files] == ["config.json", "model.safetensors"]
    with again.open(first.files[1].sha256) as file:
        assert read_range(file, 0, 9).data == b"one"
    (folder / "model.safetensors").write_bytes(b"other")
    assert again.adopt("m", "", folder).revision != first.revision


@pytest.mark.parametrize("name", ["../secret.json", "../*.json", "/etc/hostname", "a/../../secret.json"])
def test_an_index_leads_out_of_no_folder(name: str, tmp_path: Path) -> None:
    """It comes with a model from anybody; what it names is lent to other machines."""
    folder, secret = tmp_path / "models" / "m", tmp_path / "models" / "secret.json"
    (folder / "a").mkdir(parents=True)
    secret.write_text("mine")
    (folder / "one.safetensors").write_bytes(b"one")
    index = {"weight_map": {"w": name, "v": "one.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    store = WeightStore(tmp_path / "store")

    assert "secret.json" not in [file.name for file in store.adopt("m", COMMIT, folder).files]
    with pytest.raises(NotFoundError), store.open(digest("secret.json", b"mine").sha256):
        pass


def test_names_that_could_lead_out_of_a_store_are_refused() -> None:
    """By field."""
    file = digest("a.safetensors", b"")
    for name, revision, files, field in [
        ("../m", COMMIT, [file], "model"),
        ("m", "../x", [file], "revision"),
        ("m", COMMIT, [file._replace(name="../a.safetensors")], "files.name"),
        ("m", COMMIT, [file._replace(sha256="../../a")], "files.sha256"),
        ("m", COMMIT, [], "files"),
    ]:
        with pytest.raises(InvalidFieldError) as refused:
            make_manifest(name, revision, files)
        assert refused.value.field == field
