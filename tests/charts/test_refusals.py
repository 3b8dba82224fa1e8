"""Wrong values end the installation with a sentence that says what to set."""

from __future__ import annotations

from typing import Any

import pytest
from helm_python import HelmError

from charts.render import render
from tests.charts.rendering import MINIMAL, with_values

_GPU = {"resource": "nvidia.com/gpu"}
_DOWNLOAD = {"url": "http://a.example/m.tar", "sha256": "0" * 64, "sizeLimit": "1Gi"}
_OUTSIDE = {"enabled": True, "cidrs": ["10.0.0.0/8"]}
_ROUTE = {"enabled": True, "parentRefs": [{"name": "g"}]}
_SHARED = {"tls.secretName": "s", "router.replicas": 1}
_JOIN = {
    "existingSecret": "j",
    "cacheIndexAddress": "index.example:8011",
    "assignments": [{"role": "decode", "settings": {"engine": "mlx", "modelDir": "/models/llama"}}],
}
_OTLP = "http://collector:4317"

_COMBINATIONS: list[tuple[dict[str, object], str]] = [
    (
        {"tls": {"secretName": "s", "authoritySecret": "a", "certManager": {"enabled": True}}},
        "tls.secretName and tls.authoritySecret and tls.certManager.enabled are set: set one",
    ),
    ({"tls": {"enabled": False, "secretName": "s"}}, "tls.secretName is set, but tls.enabled is false: set it to true"),
    ({"tls.certManager.enabled": True}, "needs who signs the authority: set tls.certManager.issuerRef.name"),
    (
        {"tls.certManager.issuerRef.name": "ca"},
        "which was a certificate for all pods: set tls.certManager.enabled if the issuer may sign an authority",
    ),
    (
        {"gateway.tls.existingSecret": "s", "gateway.ingress": {"enabled": True, "hosts": ["a.example"]}},
        "gateway.ingress speaks plain to the gateway, and gateway.tls has it ask for TLS",
    ),
    (
        {"gateway.tls.existingSecret": "s", "gateway.httpRoute": _ROUTE},
        "gateway.httpRoute and grpcRoute have Gateways speak plain",
    ),
    ({"model.source": {}}, "model.source names no weights: set exactly one of demo, pvc"),
    ({"model.source.pvc": {"claimName": "w"}}, "model.source names several sources (demo, pvc): set exactly one"),
    (
        {"model.source": {"hostPath": {"path": "/m"}}},
        "model.source.hostPath is forbidden at Pod Security level restricted: set",
    ),
    (
        {"model.source": {"image": {"reference": "r/m"}}},
        "model.source.image is a volume that Pod Security level restricted does",
    ),
    (
        {"model.source": {"download": _DOWNLOAD}},
        "model.source.download.url must begin with https://, got http://a.example",
    ),
    ({"model.name": ""}, "model.name is empty: set the name"),
    (
        {"gateway.modelSource": {"demo": True, "pvc": {"claimName": "w"}}},
        "gateway.modelSource names several sources (demo, pvc)",
    ),
    (
        {"decode.pools.d.modelSource": {"hostPath": {"path": "/m"}}},
        "decode.pools.d.modelSource.hostPath is forbidden at Pod Security level restricted",
    ),
    ({"fullnameOverride": "a" * 41}, "is longer than 40 characters: set fullnameOverride"),
    ({"prefill.pools." + "a" * 40: {}}, "would be longer than the 63 characters of a node id: shorten the pool's name"),
    ({"decode.pools": {}}, "nothing decodes: name a pool under worker.pools"),
    (
        {"discovery.enabled": False},
        "router.replicas is 2, and nodes must report to each: set discovery.enabled, or router.replicas: 1",
    ),
    (
        {"discovery.enabled": False, "router.replicas": 1, "cacheIndex.replicas": 3},
        "cacheIndex.replicas is 3, and nodes must report to each: set discovery.enabled",
    ),
    (
        {"cacheIndex.replicas": 2, "bareMetal": {"enabled": True, "cidrs": ["10.0.0.0/8"]}},
        "cacheIndex.replicas is 2, and nodes outside the cluster reach one pod alone: set cacheIndex.replicas: 1",
    ),
    (
        {"gateway.podDisruptionBudget.minAvailable": 2},
        "minAvailable is 2 of 2 replicas, so no Kubernetes node could be drained",
    ),
    (
        {"decode.pools.d.podDisruptionBudget.minAvailable": 1},
        "decode.pools.d.podDisruptionBudget.minAvailable is 1 of 1",
    ),
    (
        {"router.settings.prefillPolicy": "remote", "prefill.pools": {}},
        "router.settings.prefillPolicy is remote, but nothing prefills remotely: name a pool",
    ),
    (
        {"gateway.autoscaling": {"enabled": True, "maxReplicas": 1}},
        "gateway.autoscaling.maxReplicas (1) is below minReplicas (2)",
    ),
    (
        {"gateway.autoscaling.enabled": True, "gateway.resources": {"requests": {"cpu": None}}},
        "set gateway.resources.requests.cpu",
    ),
    ({"gateway.ingress.enabled": True}, "gateway.ingress.enabled needs host names: set gateway.ingress.hosts"),
    ({"gateway.httpRoute.enabled": True}, "needs a Gateway to attach to: set gateway.httpRoute.parentRefs"),
    ({"gateway.grpcRoute.enabled": True}, "needs a Gateway to attach to: set gateway.grpcRoute.parentRefs"),
    (
        {
            "gateway.httpRoute": {**_ROUTE, "hostnames": ["a", "b"]},
            "gateway.grpcRoute": {**_ROUTE, "hostnames": ["b"]},
        },
        "gateway.httpRoute and gateway.grpcRoute share host names on one listener",
    ),
    (
        {"gateway.tls.clientCertificates": True},
        "gateway.tls.clientCertificates needs TLS on the gateway's ports: set gateway.tls.existingSecret",
    ),
    (
        {
            "gateway.tls": {"existingSecret": "s", "clientCertificates": True},
            "telemetry.serviceMonitor.enabled": True,
        },
        "telemetry.serviceMonitor scrapes without a certificate",
    ),
    (
        {"gateway.service.httpPort": 8001},
        "gateway.service.httpPort and grpcPort are both 8001: set two different ports",
    ),
    ({"gateway.apiKeys.existingSecret": "k"}, "`helm test` needs a key too: set test.apiKeySecret"),
    ({"bareMetal.enabled": True}, "opens router and cache index to other networks: set bareMetal.cidrs"),
    (
        {"bareMetal": {"enabled": True, "cidrs": ["10.0.0.0/8"], "service": {"type": "ClusterIP"}}},
        "bareMetal.service.type ClusterIP is not reachable from outside: set LoadBalancer or NodePort",
    ),
    (
        {
            "bareMetal": {
                "enabled": True,
                "cidrs": ["10.0.0.0/8"],
                "service": {"routerNodePort": 30010, "cacheIndexNodePort": 30010},
            }
        },
        "routerNodePort and cacheIndexNodePort are both 30010: set two different ports",
    ),
    (
        {"bareMetal": {**_OUTSIDE, "join": {**_JOIN, "existingSecret": ""}}},
        "where each of 2 routers is: set bareMetal.join.routerAddress to host:port of Services baton-router-0-outside",
    ),
    (
        {"bareMetal": {**_OUTSIDE, "grpcRoute": _ROUTE}, "tls.enabled": False},
        "router.replicas is 2, and bareMetal.grpcRoute leads nodes outside to any one of them: set router.replicas: 1",
    ),
    (
        {"bareMetal": {**_OUTSIDE, "join": {**_JOIN, "authority": {"existingSecret": "a"}}}},
        "pods and machines get certificates of one authority: set tls.authoritySecret instead",
    ),
    (
        {"bareMetal": {**_OUTSIDE, "service": {"routerNodePort": 30010, "joinNodePort": 30011}}},
        "routerNodePort and joinNodePort are both 30011: set two different ports, as far apart as there are routers",
    ),
    (
        {"bareMetal": _OUTSIDE, "tls.enabled": False},
        "whoever reaches them would be believed: set tls.enabled, or bareMetal.insecure",
    ),
    ({"bareMetal.grpcRoute.enabled": True}, "needs a Gateway to attach to: set bareMetal.grpcRoute.parentRefs"),
    (
        {"bareMetal.grpcRoute": {"enabled": True, "parentRefs": [{"name": "g"}]}},
        "bareMetal.grpcRoute.enabled has no effect without bareMetal.enabled: set that too",
    ),
    (
        {"bareMetal.tlsRoute": {"enabled": True, "parentRefs": [{"name": "g"}]}},
        "bareMetal.tlsRoute.enabled has no effect without bareMetal.enabled: set that too",
    ),
    (
        {"bareMetal": {**_OUTSIDE, "grpcRoute": _ROUTE}, "router.replicas": 1},
        "but router and cache index ask machines for certificates: set bareMetal.tlsRoute instead",
    ),
    (
        {"bareMetal": {**_OUTSIDE, "tlsRoute": _ROUTE}, "tls.enabled": False},
        "tlsRoute passes TLS through, but router and cache index have none: set tls.enabled, or bareMetal.grpcRoute",
    ),
    (
        {
            "bareMetal": {**_OUTSIDE, "service": {"routerNodePort": 30010, "joinNodePort": 30010}},
            "router.replicas": 1,
        },
        "routerNodePort and joinNodePort are both 30010: set two different ports",
    ),
    (
        {"bareMetal": {**_OUTSIDE, "join": {**_JOIN, "existingSecret": ""}}, **_SHARED},
        "assignments has no effect without a secret by which machines join: set bareMetal.join.existingSecret",
    ),
    ({"bareMetal.join": _JOIN}, "bareMetal.join has no effect without bareMetal.enabled: set that too"),
    (
        {"bareMetal": {**_OUTSIDE, "join": _JOIN}, "tls.enabled": False},
        "bareMetal.join gives machines certificates, so connections need TLS: set tls.enabled",
    ),
    (
        {"bareMetal": {**_OUTSIDE, "join": {**_JOIN, "assignments": []}}, "router.replicas": 1},
        "bareMetal.join does not say what machines run: set bareMetal.join.assignments",
    ),
    (
        {"bareMetal": {**_OUTSIDE, "join": {**_JOIN, "cacheIndexAddress": ""}}, "router.replicas": 1},
        "set bareMetal.join.cacheIndexAddress to host:port of Service baton-cache-index-outside",
    ),
    (
        {"bareMetal": {**_OUTSIDE, "join": _JOIN, "service": {"type": "NodePort"}}, "router.replicas": 1},
        "its node port is any: set bareMetal.service.routerNodePort or bareMetal.join.routerAddress",
    ),
    (
        {
            "bareMetal": {
                **_OUTSIDE,
                "join": {
                    **_JOIN,
                    "assignments": [{"role": "decode", "settings": {"modelDir": "/m", "dtype": "float16"}}],
                },
            },
            "router.replicas": 1,
        },
        "settings.dtype differs (float16 in bareMetal.join.assignments[0], float32 in decode.pools.d)",
    ),
    ({"telemetry.otlpEndpoint": "collector:4317"}, "telemetry.otlpEndpoint must be http://HOST:PORT"),
    ({"telemetry.podMonitor.enabled": True}, "set networkPolicy.metrics to the pods of Prometheus"),
    (
        {
            "gateway.apiKeys.existingSecret": "k",
            "test.apiKeySecret": "t",
            "telemetry.serviceMonitor.enabled": True,
        },
        "gateway.apiKeys guards /metrics too: set telemetry.serviceMonitor.apiKeySecret",
    ),
    (
        {"decode.pools.d.engine": "mlx"},
        "decode.pools.d.engine is mlx, which runs on Apple machines: let them join by bareMetal",
    ),
    (
        {"decode.pools.d.accelerator": _GPU},
        "decode.pools.d.accelerator.resource is nvidia.com/gpu, but engine mock computes nothing",
    ),
    (
        {"decode.pools.d": {"engine": "torch", "image": "control"}},
        "decode.pools.d.image is control, which holds no torch: set image: cpu or cuda",
    ),
    (
        {"decode.pools.d": {"engine": "torch", "image": "cpu", "accelerator": _GPU, "settings": {"device": "cuda"}}},
        "decode.pools.d.image is cpu, which cannot use nvidia.com/gpu: set image: cuda",
    ),
    (
        {"decode.pools.d": {"engine": "torch", "accelerator": _GPU}},
        "decode.pools.d asks for nvidia.com/gpu, but computes on the CPU: set decode.pools.d.settings.device: cuda",
    ),
    (
        {"decode.pools.d": {"engine": "torch", "settings": {"device": "cuda:0"}}},
        "decode.pools.d.settings.device is cuda:0, but the pods get no GPU: set decode.pools.d.accelerator.resource",
    ),
    (
        {
            "decode.pools.d": {
                "engine": "torch",
                "accelerator": _GPU,
                "settings": {"device": "cuda"},
                "resources": {"limits": {"nvidia.com/gpu": 1}},
            }
        },
        "decode.pools.d.resources.limits names nvidia.com/gpu, which accelerator.count sets: remove it there",
    ),
    (
        {
            "decode.pools.d": {
                "engine": "torch",
                "accelerator": {**_GPU, "count": 2},
                "settings": {"device": "cuda", "tensorParallel": 4},
            }
        },
        "settings.tensorParallel is 4, but each pod gets 2 of nvidia.com/gpu: set decode.pools.d.accelerator.count: 4",
    ),
    (
        {"prefill.pools.p.advertise": "hostPort"},
        "prefill.pools.p.advertise hostPort is forbidden at Pod Security level restricted",
    ),
    (
        {"prefill.pools.p.advertise": "hostPort", "podSecurity": "privileged"},
        "prefill.pools.p.advertise hostPort serves nodes outside the cluster alone: set bareMetal.enabled",
    ),
    (
        {"telemetry.otlpEndpoint": _OTLP, "decode.pools.d.autoscaling": {"enabled": True, "minReplicas": 5}},
        "decode.pools.d.autoscaling.maxReplicas (4) is below minReplicas (5)",
    ),
    (
        {
            "telemetry.otlpEndpoint": _OTLP,
            "decode.pools.d.autoscaling": {"enabled": True, "queueSeconds": 0, "kvUsedRatio": 0},
        },
        "decode.pools.d.autoscaling looks at nothing: set queueSeconds or kvUsedRatio above 0",
    ),
    (
        {"decode.pools.d.autoscaling.enabled": True},
        "follows metrics that nobody collects: set telemetry.otlpEndpoint or telemetry.podMonitor.enabled",
    ),
    (
        {"telemetry.otlpEndpoint": _OTLP, "decode.pools.d.autoscaling": {"enabled": True, "kind": "keda"}},
        "autoscaling.kind keda asks Prometheus: set decode.pools.d.autoscaling.prometheusAddress",
    ),
    (
        {"decode.pools.d.settings.dtype": "bfloat16"},
        "settings.dtype differs (bfloat16 in decode.pools.d, float32 in prefill.pools.p)",
    ),
    (
        {"prefill.pools.p.settings.blockTokens": 32},
        "settings.blockTokens differs (16 in decode.pools.d, 32 in prefill.pools.p)",
    ),
]

_SINGLE_VALUES: list[tuple[str, object, str]] = [
    ("gatway", {}, "gatway"),
    ("gateway.replicas", "two", "/gateway/replicas"),
    ("gateway.replicas", 0, "/gateway/replicas"),
    ("gateway.settings.maxConcurentRequests", 5, "maxConcurentRequests"),
    ("gateway.settings.maxConcurrentRequests", 0, "/gateway/settings/maxConcurrentRequests"),
    ("router.settings.port", 9, "port"),
    ("router.settings.prefillPolicy", "sometimes", "/router/settings/prefillPolicy"),
    ("decode.pools.d.engine", "tensorflow", "/decode/pools/d/engine"),
    ("decode.pools.Upper", {}, "Upper"),
    ("decode.pools.d.settings.frameTimeoutSeconds", 0, "frameTimeoutSeconds"),
    ("prefill.pools.p.settings.frameTimeoutSeconds", 1, "frameTimeoutSeconds"),
    ("podSecurity", "lax", "/podSecurity"),
    ("model.source.download", {**_DOWNLOAD, "sha256": "abc"}, "sha256"),
    ("model.source.pvc", {"path": "x"}, "claimName"),
    ("bareMetal.cidrs", ["192.168.1.1"], "/bareMetal/cidrs/0"),
    ("bareMetal.service.routerNodePort", 8010, "routerNodePort"),
    ("bareMetal.join.assignments", [{"role": "decode", "settings": {"engine": "mlx"}}], "modelDir"),
    ("bareMetal.join.assignments", [{"role": "agent", "settings": {"modelDir": "/m"}}], "/role"),
    ("bareMetal.join.assignments", [{"role": "decode", "settings": {"modelDir": "/m", "host": "h"}}], "host"),
    ("bareMetal.join.cacheIndexAddress", "index.example:grpc", "cacheIndexAddress"),
    ("bareMetal.tlsRoute.parentRefs", [{"name": "g", "sectionName": "s"}], "parentRefs"),
    ("telemetry.traceRatio", 2, "/telemetry/traceRatio"),
    ("image.control.digest", "latest", "/image/control/digest"),
]


@pytest.mark.parametrize(("changes", "sentence"), _COMBINATIONS, ids=[sentence[:60] for _, sentence in _COMBINATIONS])
def test_values_that_do_not_go_together_are_refused(changes: dict[str, object], sentence: str) -> None:
    """Each check of the chart says which key, what is wrong, and what to set."""
    with pytest.raises(HelmError) as refusal:
        render(_changed(changes))

    assert sentence in str(refusal.value)


@pytest.mark.parametrize(("path", "value", "named"), _SINGLE_VALUES)
def test_a_value_that_is_wrong_by_itself_is_refused_by_the_schema(path: str, value: object, named: str) -> None:
    """The schema names the key."""
    with pytest.raises(HelmError) as refusal:
        render(with_values(MINIMAL, path, value))

    assert named in str(refusal.value)


def test_enough_is_refused() -> None:
    """At least thirty different sentences are covered, and what they are compared with installs."""
    render(MINIMAL)

    assert len({sentence for _, sentence in _COMBINATIONS}) == len(_COMBINATIONS) >= 30


def _changed(changes: dict[str, object]) -> dict[str, Any]:
    values = dict(MINIMAL)
    for path, value in changes.items():
        if path == "model.source":
            values = with_values(values, "model", {})
        values = with_values(values, path, value)
    return values
