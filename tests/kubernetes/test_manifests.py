"""Every example and every optional object, checked by the live API server; warnings count as errors."""

from __future__ import annotations

import json
import lzma
import os
from pathlib import Path
from typing import Any

import pytest

from charts.render import manifests_of, render
from tests.charts.rendering import ALL, values_of
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.results import Measured

_DEFINITIONS = os.environ.get("BATON_KUBERNETES_DEFINITIONS", "")
"""Folder of CustomResourceDefinitions, as the Gateway API, cert-manager and the Prometheus operator release them."""


@pytest.fixture(scope="module")
def known_resources(cluster: Cluster) -> frozenset[str]:
    """Return what objects the cluster takes, once it knows the extensions that are to be had."""
    if cluster.tools is not None:
        keda = cluster.tools / "keda" / "definitions.yaml.xz"
        given = sorted(Path(_DEFINITIONS).glob("*.yaml")) if _DEFINITIONS else []
        texts = [lzma.decompress(keda.read_bytes()).decode()] if keda.is_file() else []
        for text in [*texts, *(path.read_text("utf-8") for path in given)]:
            cluster.kubectl("apply", "--server-side", "--force-conflicts", "--filename", "-", text=text)
        cluster.kubectl("wait", "--for=condition=Established", "customresourcedefinitions", "--all")
    return frozenset(cluster.kubectl("api-resources", "--output", "name", "--verbs", "create").split())


@pytest.mark.parametrize("name", ALL)
def test_the_api_server_takes_every_object(
    cluster: Cluster, namespace: str, known_resources: frozenset[str], name: str, measured: Measured
) -> None:
    """Those of extensions where their definitions are; the others' schemas are checked by tests/charts."""
    values = values_of(name)
    level = values.get("podSecurity", "restricted")
    labels = [f"pod-security.kubernetes.io/{mode}={level}" for mode in ("enforce", "warn")]
    cluster.kubectl("label", "namespace", namespace, *labels, "--overwrite")
    objects = list(manifests_of(render(values, namespace=namespace)))
    taken = [each for each in objects if _resource(each) in known_resources]
    extensions = sorted({each["kind"] for each in taken if _is_extension(each)})
    unknown = sorted({each["kind"] for each in objects if _resource(each) not in known_resources})
    document = json.dumps({"apiVersion": "v1", "kind": "List", "items": taken})

    assert len(taken) > 10
    cluster.kubectl("apply", "--dry-run=server", "--warnings-as-errors", "--filename", "-", text=document)
    measured(
        f"{len(taken)} of {len(objects)} objects taken at level {level}, extensions {extensions}, unknown {unknown}",
        objects=len(objects),
        taken=len(taken),
        unknown=unknown,
    )
    if _DEFINITIONS:
        assert unknown == []


def _resource(manifest: Any) -> str:
    """Return what `kubectl api-resources` calls an object's kind: plural and group."""
    group = manifest["apiVersion"].rpartition("/")[0]
    kind = manifest["kind"].lower()
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}es" if kind.endswith("s") else f"{kind}s"
    return f"{plural}.{group}" if group else plural


def _is_extension(manifest: Any) -> bool:
    group = manifest["apiVersion"].rpartition("/")[0]
    return "." in group and (not group.endswith(".k8s.io") or group.startswith("gateway."))
