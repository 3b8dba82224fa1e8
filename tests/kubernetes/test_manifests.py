"""Every example and every optional object, checked by the live API server; warnings count as errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from charts.render import manifests_of, read_example, render
from tests.charts.rendering import ALL, EVERYTHING, MINIMAL, OPEN
from tests.kubernetes.cluster import Cluster

_VALUES = {"everything": EVERYTHING, "minimal values": MINIMAL, "open": OPEN}


@pytest.mark.sample
@pytest.mark.parametrize("name", ALL)
def test_the_api_server_takes_every_object(cluster: Cluster, namespace: str, name: str) -> None:
    """Those of extensions where their definitions are; the others' schemas are checked by tests/charts."""
    label = "pod-security.kubernetes.io/enforce=privileged"
    cluster.kubectl("label", "namespace", namespace, label, "--overwrite")
    rendered = render(_VALUES.get(name) or read_example(name), namespace=namespace)
    known = set(cluster.kubectl("api-resources", "--output", "name", "--verbs", "create").split())
    objects = [each for each in manifests_of(rendered) if _resource(each) in known]
    document = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})

    assert len(objects) > 10
    cluster.kubectl("apply", "--dry-run=server", "--warnings-as-errors", "--filename", "-", text=document)


def _resource(manifest: Any) -> str:
    """Return what `kubectl api-resources` calls an object's kind: plural and group."""
    group = manifest["apiVersion"].rpartition("/")[0]
    kind = manifest["kind"].lower()
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}es" if kind.endswith("s") else f"{kind}s"
    return f"{plural}.{group}" if group else plural
