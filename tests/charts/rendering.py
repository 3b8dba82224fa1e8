"""Rendered manifests, and the parts of them that tests look at."""

from __future__ import annotations

import copy
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from charts.render import example_names, manifests_of, read_example, render

EXAMPLES = example_names()

MINIMAL: Mapping[str, Any] = {
    "model": {"source": {"demo": True}},
    "poolDefaults": {"engine": "mock"},
    "prefill": {"pools": {"p": {}}},
    "decode": {"pools": {"d": {}}},
}
"""The fewest values that install."""

EVERYTHING: Mapping[str, Any] = {
    "commonLabels": {"team": "llm"},
    "development": {"syncCode": True},
    "discovery": {"enabled": True, "readNodes": True},
    "tls": {"authoritySecret": "authority", "serverName": "baton.llm"},
    "imagePullSecrets": [{"name": "registry"}],
    "listenHost": "::",
    "model": {"name": "llama", "source": {"pvc": {"claimName": "weights", "path": "llama"}}},
    "image": {"control": {"digest": "sha256:" + "0" * 64}},
    "gateway": {
        "apiKeys": {"existingSecret": "keys", "tenantSecretKey": "tenant"},
        "allowFrom": [{"namespaceSelector": {"matchLabels": {"clients": "yes"}}}],
        "autoscaling": {"enabled": True},
        "extraEnv": [{"name": "PYTHONUNBUFFERED", "value": "1"}],
        "ingress": {"enabled": True, "hosts": ["a.example"], "tlsSecret": "tls", "annotations": {"a": "b"}},
        "httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": ["a.example"]},
        "grpcRoute": {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": ["grpc.a.example"]},
        "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
        "podAnnotations": {"a": "b"},
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "modelSource": {
            "download": {
                "url": "https://a.example:8443/m.tar",
                "sha256": "0" * 64,
                "sizeLimit": "1Gi",
                "cidrs": ["10.0.0.0/8"],
            }
        },
    },
    "poolDefaults": {"accelerator": {"resource": "nvidia.com/gpu"}, "settings": {"device": "cuda:0"}},
    "prefill": {
        "pools": {
            "p": {
                "autoscaling": {"enabled": True, "kind": "keda", "prometheusAddress": "http://prometheus:9090"},
                "podDisruptionBudget": {"minAvailable": "50%"},
            }
        }
    },
    "decode": {"pools": {"d": {"autoscaling": {"enabled": True}, "accelerator": {"count": 2}}, "e": {"replicas": 3}}},
    "worker": {"pools": {"w": {"settings": {"maxOutboxBytes": 1 << 30, "probeBytes": 0}}}},
    "bareMetal": {
        "enabled": True,
        "cidrs": ["10.1.0.0/16"],
        "service": {"type": "NodePort", "routerNodePort": 30010, "joinNodePort": 30012},
        "join": {
            "existingSecret": "join",
            "routerAddress": "10.1.0.9:30010,10.1.0.8:30011",
            "cacheIndexAddress": "10.1.0.9:30014",
            "assignments": [
                {
                    "nodeId": "mac-*",
                    "role": "decode",
                    "settings": {
                        "engine": "mlx",
                        "modelDir": '/models/a "b"',
                        "numBlocks": 16384,
                        "sharePrompts": False,
                    },
                },
                {"role": "prefill", "settings": {"modelDir": "/m", "drainSeconds": 0.5}},
            ],
        },
        "tlsRoute": {"enabled": True, "parentRefs": [{"name": "public", "namespace": "infra"}]},
    },
    "telemetry": {
        "otlpEndpoint": "http://collector:4317",
        "serviceMonitor": {"enabled": True, "apiKeySecret": "keys", "labels": {"release": "prometheus"}},
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "dashboards": {"enabled": True, "annotations": {"grafana_folder": "Baton"}},
        "alerts": {"enabled": True, "labels": {"release": "prometheus"}},
    },
    "networkPolicy": {"otlp": [{"podSelector": {}}], "metrics": [{"podSelector": {}}]},
    "test": {"apiKeySecret": "keys"},
}
"""Values that turn on what no example does."""

OPEN: Mapping[str, Any] = {
    **MINIMAL,
    "tls": {"enabled": False},
    "router": {"replicas": 1},
    "gateway": {"tls": {"existingSecret": "public-certificate"}},
    "bareMetal": {
        "insecure": True,
        "enabled": True,
        "cidrs": ["10.1.0.0/16"],
        "service": {"type": "ClusterIP"},
        "grpcRoute": {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": ["r.example"]},
    },
}
"""Values with machines outside of the cluster, without TLS but for clients."""

SHARED: Mapping[str, Any] = {
    **MINIMAL,
    "tls": {"secretName": "certificate"},
    "router": {"replicas": 1},
    "bareMetal": {
        "enabled": True,
        "cidrs": ["10.1.0.0/16"],
        "join": {
            "existingSecret": "join",
            "authority": {"existingSecret": "authority", "key": "tls.key"},
            "cacheIndexAddress": "10.1.0.9:8011",
            "assignments": [{"role": "decode", "settings": {"engine": "mlx", "modelDir": "/m"}}],
        },
    },
}
"""Values with one certificate for all pods, and machines that get one of their own."""

_VALUES = {"everything": EVERYTHING, "minimal values": MINIMAL, "open": OPEN, "shared": SHARED}

Manifest = dict[str, Any]


def values_of(name: str) -> Mapping[str, Any]:
    """Return the values of an example, or EVERYTHING, MINIMAL, OPEN or SHARED."""
    return _VALUES.get(name) or read_example(name)


@cache
def _rendered(name: str) -> tuple[Manifest, ...]:
    return tuple(manifests_of(render(values_of(name))))


ALL = (*EXAMPLES, *_VALUES)
"""Names of the renderings that rules are checked on."""


def manifests(name: str) -> list[Manifest]:
    """Return the objects of an example, or of EVERYTHING, MINIMAL, OPEN or SHARED."""
    return copy.deepcopy(list(_rendered(name)))


def with_values(base: Mapping[str, Any], path: str, value: object) -> dict[str, Any]:
    """Return values in which the key of a dotted path is set."""
    result: dict[str, Any] = copy.deepcopy(dict(base))
    target = result
    *parents, last = path.split(".")
    for key in parents:
        target = target.setdefault(key, {})
    target[last] = value
    return result


def find(objects: list[Manifest], kind: str, name: str) -> Manifest:
    """Return the one object of a kind and name."""
    (found,) = [each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def pods(objects: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Yield the name and specification of every pod that the objects make."""
    for each in objects:
        if each["kind"] == "Pod":
            yield each["metadata"]["name"], each["spec"]
        elif "template" in each.get("spec", {}):
            yield each["metadata"]["name"], each["spec"]["template"]["spec"]


def started_worker(pod: Manifest) -> Manifest:
    """Return a pod whose agent is left out: as if its container were the worker that the agent starts."""
    (container,) = pod["containers"]
    if container.get("args", [])[:2] != ["serve", "agent"]:
        return pod
    given = dict(text.removeprefix("--").split("=", 1) for text in container["args"][2:])
    own = (f"--host={given['host']}", f"--port={given['worker-port']}", f"--node-id={given['worker-node-id']}")
    arguments = ["serve", given["worker-role"], *own, *shlex.split(given["worker-arguments"])]
    return {**pod, "containers": [{**container, "args": arguments}]}


def containers(pod: Manifest) -> list[Manifest]:
    """Return the containers of a pod, those that run first included."""
    return [*pod.get("initContainers", []), *pod["containers"]]
