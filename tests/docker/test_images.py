"""The Dockerfile, the bake file and skaffold.yaml: linted, and true to the chart and to the package."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts.render import manifests_of, read_example, render
from tests.docker.dockerfile import ancestry, read_stages

_ROOT = Path(__file__).parents[2]
_DOCKERFILE = _ROOT / "docker" / "Dockerfile"
_IMAGES = ("control", "cpu", "cuda")


def test_the_dockerfile_passes_hadolint() -> None:
    """With all rules, but those that it says why it breaks."""
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    assert hadolint is not None
    done = subprocess.run([hadolint, str(_DOCKERFILE)], capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stdout) == (0, "")


def test_images_run_without_rights_and_bring_no_tools() -> None:
    """Each image ends as a numbered user, copies from two build stages alone, and runs no package manager."""
    stages = {stage.name: stage for stage in read_stages(_DOCKERFILE)}
    for name in _IMAGES:
        words = [instruction.word for instruction in stages[name].instructions]
        last_user = [each.arguments for each in stages[name].instructions if each.word == "USER"]
        copies = [each.arguments for each in stages[name].instructions if each.word == "COPY"]

        assert last_user == ["65532:65532"]
        assert copies == [f"--from=build-{name} /opt/baton /opt/baton", "--from=build-baton /opt/release /opt/baton"]
        assert words[-1] == "ENTRYPOINT"
        for stage in ancestry(list(stages.values()), name):
            for each in stage.instructions:
                assert not re.search(r"\b(apt-get|pip install)\b", each.arguments), f"{stage.name}: {each.arguments}"


def test_bases_are_pinned() -> None:
    """Every base is another stage or a version."""
    names = {stage.name for stage in read_stages(_DOCKERFILE)}
    (base,) = {stage.base for stage in read_stages(_DOCKERFILE)} - names

    assert re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+", base)


def test_everything_that_is_copied_exists_and_is_sent_to_the_builder() -> None:
    """Each source of a COPY is in the repository, and the ignore file lets it through."""
    allowed = {
        line[1:] for line in (_ROOT / "docker" / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    copies = [
        each.arguments.split()[:-1]
        for stage in read_stages(_DOCKERFILE)
        for each in stage.instructions
        if each.word == "COPY" and "--from" not in each.arguments
    ]
    sources = {source for arguments in copies for source in arguments}

    assert sources == allowed
    assert all((_ROOT / source).exists() for source in sources)


def test_the_control_image_has_no_torch() -> None:
    """Its extras, and what they name in turn, bring no framework."""
    extras = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    installed = {
        stage.name: re.findall(r"'\.\[([a-z,]+)\]'", each.arguments)
        for stage in read_stages(_DOCKERFILE)
        for each in stage.instructions
        if "pip install" in each.arguments and stage.name != "build-baton"
    }

    assert set(installed) == {"build-control", "build-cpu", "build-cuda"}
    for name, (chosen,) in installed.items():
        requirements = " ".join(text for extra in chosen.split(",") for text in _closure(extras, extra))
        assert ("torch" in requirements) == (name != "build-control")
        assert "llguidance" in requirements


@pytest.mark.parametrize("name", _IMAGES)
def test_the_demo_model_lies_where_the_chart_looks(name: str) -> None:
    """The link in the image leads to the package's folder, and bears the name that `model.source.demo` gives."""
    stage = next(stage for stage in read_stages(_DOCKERFILE) if stage.name == name)
    (link,) = [each.arguments for each in stage.instructions if each.arguments.startswith("ln -s")]
    _, _, target, path = link.split()
    arguments = str(manifests_of(render(read_example("minimal"))))

    assert (_ROOT / "services" / target.partition("site-packages/")[2] / "config.json").is_file()
    assert f"--model-dir={path}" in arguments


def test_the_bake_file_builds_what_the_chart_pulls() -> None:
    """One target per image, with the chart's registry, names and version as defaults."""
    bake = json.loads((_ROOT / "docker" / "docker-bake.json").read_text())
    values = yaml.safe_load((_ROOT / "charts" / "baton" / "values.yaml").read_text())["image"]
    chart = yaml.safe_load((_ROOT / "charts" / "baton" / "Chart.yaml").read_text())
    defaults = {name: variable["default"] for name, variable in bake["variable"].items()}
    targets = {name: bake["target"][name] for name in bake["group"]["default"]["targets"]}

    assert set(targets) == set(_IMAGES) <= {stage.name for stage in read_stages(_DOCKERFILE)}
    assert (defaults["REGISTRY"], defaults["TAG"]) == (values["registry"], chart["appVersion"])
    for name, target in targets.items():
        assert target["target"] == name
        assert target["tags"] == [f"${{REGISTRY}}/{values[name]['repository']}:${{TAG}}"]
    assert "type=sbom" in bake["target"]["image"]["attest"]


def test_skaffold_installs_values_that_render() -> None:
    """Both configurations name targets and examples that exist, and set keys that the chart has."""
    skaffold = yaml.safe_load((_ROOT / "skaffold.yaml").read_text())
    for section in (skaffold, *skaffold["profiles"]):
        assert {artifact["docker"]["target"] for artifact in section["build"]["artifacts"]} <= set(_IMAGES)
        (release,) = section["deploy"]["helm"]["releases"]
        (values_file,) = release["valuesFiles"]
        values: dict[str, Any] = yaml.safe_load((_ROOT / values_file).read_text())
        for path, value in {**release["setValues"], **release["setValueTemplates"]}.items():
            _set(values, path, "x" if isinstance(value, str) and "{{" in value else value)

        images = re.findall(r"'image': '([^']+)'", str(manifests_of(render(values))))

        assert set(images) <= {"x:x"}


def test_skaffold_copies_code_to_where_services_run_it_from() -> None:
    """Changed files go into the volume that is first on Python's path."""
    (artifact,) = yaml.safe_load((_ROOT / "skaffold.yaml").read_text())["build"]["artifacts"]
    (rule,) = artifact["sync"]["manual"]
    rendered = str(manifests_of(render({**read_example("minimal"), "development": {"syncCode": True}})))

    assert rule["src"].startswith(rule["strip"])
    assert f"'name': 'PYTHONPATH', 'value': '{rule['dest']}'" in rendered
    assert f"'mountPath': '{rule['dest']}'" in rendered


def _set(values: dict[str, Any], path: str, value: object) -> None:
    *parents, last = path.split(".")
    for key in parents:
        values = values.setdefault(key, {})
    values[last] = value


def _closure(extras: dict[str, list[str]], extra: str) -> Iterator[str]:
    for requirement in extras[extra]:
        nested = re.match(r"baton-serve\[([a-z,]+)\]", requirement)
        if nested:
            for name in nested[1].split(","):
                yield from _closure(extras, name)
        else:
            yield requirement
