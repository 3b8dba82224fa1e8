"""Every object is one that Kubernetes takes."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tests.charts.rendering import ALL, Manifest, manifests

_VERSIONS = ("1.28", "1.33", "1.37")
"""The oldest that the chart names, the first with image volumes, the newest that the schemas know."""
_OTHERS = {
    "monitoring.coreos.com/v1": {"ServiceMonitor", "PodMonitor", "PrometheusRule"},
    "gateway.networking.k8s.io/v1": {"HTTPRoute", "GRPCRoute", "TLSRoute"},
    "cert-manager.io/v1": {"Certificate"},
    "keda.sh/v1alpha1": {"ScaledObject"},
}
"""Kinds of other projects."""


@pytest.mark.parametrize("version", _VERSIONS)
def test_objects_pass_the_openapi_schemas(version: str) -> None:
    """Strictly: no unknown field, no wrong type, nothing missing."""
    problems = []
    num_checked = 0
    for name in ALL:
        for manifest in manifests(name):
            if manifest["apiVersion"] in _OTHERS:
                assert manifest["kind"] in _OTHERS[manifest["apiVersion"]]
                continue
            validator = _validator(version, manifest["apiVersion"], manifest["kind"])
            problems += [f"{name} {_title(manifest)}: {error.message}" for error in validator.iter_errors(manifest)]
            num_checked += 1

    assert problems == []
    assert num_checked > 100


def test_the_schemas_find_a_wrong_field() -> None:
    """The check itself fails where it should."""
    manifest = next(each for each in manifests("minimal") if each["kind"] == "Deployment")
    manifest["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["grpc"]["port"] = "grpc"
    manifest["spec"]["replica"] = 1
    errors = list(_validator("1.33", manifest["apiVersion"], manifest["kind"]).iter_errors(manifest))

    assert len(errors) == 2


@pytest.mark.parametrize("name", ALL)
def test_names_are_unique_and_in_the_release_namespace(name: str) -> None:
    """Two objects of a kind never share a name, and everything says where it belongs."""
    objects = manifests(name)
    titles = [_title(each) for each in objects]

    assert len(titles) == len(set(titles))
    assert {each["metadata"]["namespace"] for each in objects if not each["kind"].startswith("Cluster")} == {"llm"}


def _title(manifest: Manifest) -> str:
    return f"{manifest['kind']}/{manifest['metadata']['name']}"


@cache
def _definitions(version: str) -> Resource[Any]:
    return Resource.from_contents(_schema(version, "_definitions"))


@cache
def _validator(version: str, api_version: str, kind: str) -> Draft202012Validator:
    group, _, number = api_version.rpartition("/")
    name = "-".join(part for part in (kind.lower(), group.partition(".")[0], number) if part)
    schema = _schema(version, name)
    registry: Registry[Any] = _definitions(version) @ (Resource.from_contents(schema) @ Registry())
    return Draft202012Validator(schema, registry=registry)


def _schema(version: str, name: str) -> dict[str, Any]:
    folder = files("kubernetes_validate") / "kubernetes-json-schema" / f"v{version}.0-local-strict"
    schema: dict[str, Any] = json.loads((folder / f"{name}.json").read_text("utf-8"))
    return schema
