"""The file of desired models."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.errors import ConfigurationError, InvalidFieldError
from baton.internal.v1.model_service_pb2 import DesiredModel
from baton.router.models.desired import DesiredModels, read_desired


def _model(**fields: object) -> DesiredModel:
    return DesiredModel(name="llama", source="/models/llama", **fields)  # type: ignore[arg-type]


def test_what_is_wanted_outlives_the_process(tmp_path: Path) -> None:
    """With everything that was said of it; no part of a file is left behind."""
    file = tmp_path / "models.toml"
    model = _model(min_replica_count=1, pinned_machines=["a", "b"], is_on_demand=True, is_unloaded=True)
    model.keep_alive.FromSeconds(60)
    first = DesiredModels(file)
    assert first.lead()
    first.put(model)
    first.close()
    second = DesiredModels(file)

    assert second.lead()
    assert list(second) == [model]
    second.remove("llama")
    assert read_desired(file) == []
    assert sorted(each.name for each in tmp_path.iterdir()) == ["models.toml", "models.toml.lock"]


def test_what_any_name_says_can_be_read_again(tmp_path: Path) -> None:
    """A router that could not read its file would never lead again; what it could not write is refused."""
    first = DesiredModels(tmp_path / "models.toml")
    assert first.lead()
    model = DesiredModel(name='🦙 "\\', source="/models/ü🦙", pinned_machines=["mac"])
    first.put(model)
    for wrong in (DesiredModel(name="m", source="/m\x7f"), _model(pinned_machines=["\u2028"])):
        with pytest.raises(InvalidFieldError, match="printable"):
            first.put(wrong)
    first.close()
    second = DesiredModels(tmp_path / "models.toml")

    assert second.lead()
    assert list(second) == [model]


def test_of_several_routers_one_leads(tmp_path: Path) -> None:
    """Until it ends."""
    first, second = DesiredModels(tmp_path / "models.toml"), DesiredModels(tmp_path / "models.toml")

    assert (first.lead(), second.lead(), first.lead()) == (True, False, True)
    first.close()
    assert second.lead()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("min_replicas = true", r"model\[0\]\.min_replicas: expected int, got True"),
        ('pinned_machines = "mac"', r"model\[0\]\.pinned_machines: expected list"),
        ("replicas = 1", r"model\[0\]\.replicas: unknown key; known are name, source"),
        ("min_replicas = 3\nmax_replicas = 2", r"max_replica_count.*expected 3 or more"),
        ("keep_alive_seconds = -1", r"model\[0\]\.keep_alive_seconds"),
    ],
)
def test_a_wrong_file_is_refused_by_its_key(tmp_path: Path, line: str, told: str) -> None:
    """With what was expected of it."""
    file = tmp_path / "models.toml"
    file.write_text(f'[[model]]\nname = "llama"\nsource = "/m"\n{line}\n')

    with pytest.raises(ConfigurationError, match=told):
        read_desired(file)


def test_a_model_that_cannot_be_wanted_changes_nothing(tmp_path: Path) -> None:
    """Neither in memory nor in the file."""
    desired = DesiredModels(tmp_path / "models.toml")
    assert desired.lead()

    with pytest.raises(InvalidFieldError, match="source"):
        desired.put(DesiredModel(name="llama"))
    with pytest.raises(InvalidFieldError, match="a is among the pinned"):
        desired.put(_model(pinned_machines=["a"], excluded_machines=["a"]))
    assert list(desired) == []
    assert not (tmp_path / "models.toml").exists()


def test_a_file_that_changes_counts_and_one_with_a_mistake_does_not(tmp_path: Path) -> None:
    """As a mounted ConfigMap is replaced by another one; what was right before goes on."""
    file = tmp_path / "models.toml"
    file.write_text('[[model]]\nname = "llama"\nsource = "/m"\n')
    desired = DesiredModels(file)
    assert desired.lead()
    names = []
    for text in ('[[model]]\nname = "qwen"\nsource = "/q"\n', "[[model]]\nname = 3\n"):
        (tmp_path / "next").write_text(text)
        (tmp_path / "next").replace(file)
        assert desired.lead()
        names.append([model.name for model in desired])

    assert names == [["qwen"], ["qwen"]]
