"""Whatever the chart tells a service, the service takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from baton.agent.settings import AgentSettings
from baton.config.settings import flag_of, load_settings, parse_flags
from baton.demo import checkpoint_dir
from baton.internal.v1 import decode_service_pb2, prefill_service_pb2, worker_service_pb2
from baton.security.service_account import AUDIENCE
from charts.render import manifests_of, render
from charts.values_schema import CHART_OWNED, SETTINGS, camel_case
from tests.charts.rendering import ALL, MINIMAL, containers, find, manifests, pods, started_worker, with_values

_DEPLOYMENTS = {"gateway": "baton-gateway", "router": "baton-router", "cache-index": "baton-cache-index"} | {
    role: f"baton-{role}-{role[0]}" for role in ("prefill", "decode", "worker")
}

_TLS_PARTS = ("CERT_FILE", "KEY_FILE", "CA_FILE", "SERVER_NAME")


@pytest.mark.parametrize("name", ALL)
def test_every_flag_is_a_setting_of_its_service(name: str, tmp_path: Path) -> None:
    """Arguments parse and their values pass the settings class, with what Kubernetes puts in for variables."""
    keys = tmp_path / "keys"
    keys.write_text("me:secret\n")
    checked = 0
    for _, pod in pods(manifests(name)):
        (container,) = started_worker(pod)["containers"]
        if container.get("args", [""])[0] != "serve":
            continue
        _, role, *arguments = container["args"]
        flags = dict(parse_flags(SETTINGS[role], [_filled(text) for text in arguments if "--log-level" not in text]))
        if "model_dir" in flags:
            flags["model_dir"] = str(checkpoint_dir())
        flags |= {name: str(keys) for name in flags if name.endswith("_file")}

        load_settings(SETTINGS[role], flags)
        checked += 1

    assert checked >= 4


def test_an_agent_starts_the_worker_of_each_pod_that_plays_any_part(tmp_path: Path) -> None:
    """Its own flags are settings of it, and it has the certificate, which the worker shares."""
    seen, file = 0, tmp_path / "file"
    file.touch()
    for _, pod in pods(manifests("models")):
        (container,) = pod["containers"]
        if container.get("args", [])[:2] == ["serve", "agent"]:
            texts = [_filled(text) for text in container["args"][2:] if "--log-level" not in text]
            flags = parse_flags(AgentSettings, texts)
            settings = load_settings(AgentSettings, flags | {key: str(file) for key in flags if key.endswith("_file")})
            worker = _flags(started_worker(pod)["containers"][0])

            assert isinstance(settings, AgentSettings)
            assert settings.router_address == "kubernetes://baton-router:grpc"
            assert settings.stop_grace_seconds > 20
            assert (worker["tls-cert-file"], "tls-enrol-address" in worker) == (flags["tls_cert_file"], False)
            seen += 1

    assert seen == 2


@pytest.mark.parametrize("role", sorted(SETTINGS))
def test_every_setting_reaches_its_service(role: str) -> None:
    """`settings` takes each field in camelCase, and its flag carries the very value, large numbers too."""
    settings_class = SETTINGS[role]
    joined = "allowed_hosts"  # with the names that the chart knows: tests/charts/test_public_ports.py
    fields = [name for name in settings_class.model_fields if name not in CHART_OWNED and name != joined]
    defaults = {name: settings_class.model_fields[name].get_default(call_default_factory=True) for name in fields}
    wanted = {name: 0.5 if value is None else value for name, value in defaults.items()}  # of optional numbers, any
    settings = {camel_case(name): value for name, value in wanted.items()}
    values: dict[str, Any] = {**MINIMAL, "cacheIndex" if role == "cache-index" else role: {"settings": settings}}
    if role in ("prefill", "decode", "worker"):
        values[role] = {"pools": {role[0]: {"settings": settings}}}
    deployment = find(manifests_of(render(values)), "Deployment", _DEPLOYMENTS[role])
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    given = parse_flags(settings_class, [text for text in container["args"][2:] if "--log-level" not in text])

    assert set(map(flag_of, fields)) <= {flag_of(name) for name in given}
    for name in fields:
        value = json.loads(given[name]) if isinstance(wanted[name], bool) else type(wanted[name])(given[name])
        assert value == wanted[name]


@pytest.mark.parametrize("name", ALL)
def test_no_service_variable_can_become_a_setting(name: str) -> None:
    """A Service baton-router would give every pod BATON_ROUTER_PORT=tcp://..., with which no router starts."""
    settings = {
        f"{settings_class.model_config.get('env_prefix')}{field.upper()}"
        for settings_class in SETTINGS.values()
        for field in settings_class.model_fields
    }
    for pod_name, pod in pods(manifests(name)):
        assert pod["enableServiceLinks"] is False, pod_name
        names = {variable["name"] for container in containers(pod) for variable in container.get("env", [])}
        assert not names & settings, pod_name


@pytest.mark.parametrize("name", ALL)
def test_a_pod_is_given_the_time_that_its_drain_needs(name: str) -> None:
    """The kill comes after the pause before the stop signal and the drain, with some seconds to spare."""
    for pod_name, pod in pods(manifests(name)):
        (container,) = started_worker(pod)["containers"]
        if container.get("args", [""])[0] != "serve":
            continue
        settings_class = SETTINGS[container["args"][1]]
        drain = settings_class.model_fields["drain_seconds"].default
        flags = dict(flag.split("=", 1) for flag in container["args"] if flag.startswith("--"))
        hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
        pause = int(hook[1] if hook else flags["--drain-pause-seconds"])

        assert pod["terminationGracePeriodSeconds"] >= pause + drain + 5, pod_name


def _filled(text: str) -> str:
    for variable, value in {
        "POD_NAME": "baton-decode-d-6d4cf56db6-x2x7k",
        "NODE_NAME": "worker-7.example",
        "POD_IP": "10.2.3.4",
        "HOST_IP": "10.0.0.7",
    }.items():
        text = text.replace(f"$({variable})", value)
    assert "$(" not in text
    return text


@pytest.mark.parametrize("name", ALL)
def test_every_port_that_a_service_listens_on_is_fixed_and_open(name: str) -> None:
    """A port that a service chose by itself would be closed by the NetworkPolicies."""
    for pod_name, pod in pods(manifests(name)):
        (container,) = started_worker(pod)["containers"]
        if container.get("args", [""])[0] != "serve":
            continue
        role = container["args"][1]
        given = parse_flags(SETTINGS[role], [text for text in container["args"][2:] if "--log-level" not in text])
        wanted = {name for name in SETTINGS[role].model_fields if name == "port" or name.endswith("_port")}
        if "join_port" not in given:
            wanted.discard("join_port")
        if "tls_cert_file" not in given:
            wanted.discard("tls_health_port")
        if "https_cert_file" not in given:
            wanted.discard("health_port")
        if role == "gateway":
            wanted.discard("metrics_port")  # its metrics are on its HTTP port, where a pod is one process

        assert {int(given[name]) for name in wanted} == {port["containerPort"] for port in container["ports"]}, pod_name
        assert container["readinessProbe"]["grpc"]["port"] == int(
            given.get("tls_health_port") or given.get("health_port") or given.get("port") or given["grpc_port"]
        )


@pytest.mark.parametrize(
    ("name", "secret"),
    [("minimal values", "baton-authority"), ("everything", "authority"), ("gpu", "baton-issued-authority")],
)
def test_each_pod_gets_a_certificate_of_its_own(name: str, secret: str) -> None:
    """Those but routers show a token that is for routers alone; keys are in memory, the authority's at routers."""
    objects = manifests(name)
    issued = {"ca.crt": "tls.crt", "ca.key": "tls.key"} if name == "gpu" else {"ca.crt": "ca.crt", "ca.key": "ca.key"}
    router = find(objects, "Deployment" if name != "everything" else "StatefulSet", "baton-router")["spec"]
    accounts = dict(
        part.split("=") for part in _flags(router["template"]["spec"]["containers"][0])["join-pods"].split(",")
    )
    for pod_name, pod in pods(objects):
        (container,) = started_worker(pod)["containers"]
        if container.get("args", [""])[0] != "serve":
            continue
        role, given = container["args"][1], _flags(container)
        mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        volumes = {each["name"]: each for each in pod["volumes"]}
        sources = [each["secret"] for each in volumes["authority"]["projected"]["sources"]]
        keys = {item["path"]: item["key"] for each in sources for item in each["items"] if each["name"] == secret}

        assert given["tls-ca-file"] == f"{mounts['authority']}/ca.crt"
        assert given["tls-cert-file"].startswith(mounts["identity"])
        assert volumes["identity"]["emptyDir"]["medium"] == "Memory"
        assert keys == (issued if role == "router" else {"ca.crt": issued["ca.crt"]}), pod_name
        if role == "router":
            assert "account" not in volumes
            continue
        (token,) = [each["serviceAccountToken"] for each in volumes["account"]["projected"]["sources"]]
        assert (token["audience"], given["tls-enrol-token-file"]) == (AUDIENCE, f"{mounts['account']}/{token['path']}")
        assert given["tls-enrol-address"] == "baton-router.llm.svc:8012"
        assert accounts[pod["serviceAccountName"]] == (role if role in ("gateway", "cache-index") else "node")


@pytest.mark.parametrize("name", ALL)
def test_a_job_makes_the_authority_where_nobody_else_does(name: str) -> None:
    """Before all else, at upgrades too: it leaves one alone that is there. It may make Secrets, and nothing else."""
    made = [each for each in manifests(name) if each["metadata"]["name"] == "baton-authority"]
    hooks = {each["metadata"]["annotations"]["helm.sh/hook"] for each in made}

    if name not in ("minimal", "minimal values", "workers", "models", "cpu-only", "gpu-plus-apple"):
        assert made == []
        return
    (role,) = [each for each in made if each["kind"] == "Role"]
    (job,) = [each for each in made if each["kind"] == "Job"]
    assert hooks == {"pre-install,pre-upgrade"}
    assert role["rules"] == [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]}]
    assert job["spec"]["template"]["spec"]["containers"][0]["args"] == ["authority", "secret", "baton-authority"]


def test_cert_manager_makes_the_authority() -> None:
    """One that may sign, whose key stays when it is renewed."""
    (made,) = [each["spec"] for each in manifests("gpu") if each["kind"] == "Certificate"]

    assert (made["isCA"], made["secretName"], made["issuerRef"]["name"]) == (True, "baton-issued-authority", "baton-ca")
    assert made["privateKey"]["rotationPolicy"] == "Never"


def test_all_pods_may_share_a_certificate() -> None:
    """Of a Secret of somebody's own; then none enrols."""
    served = [pod for _, pod in pods(manifests("shared")) if pod["containers"][0].get("args", [""])[0] == "serve"]

    assert served
    for pod in served:
        (container,) = pod["containers"]
        given = _flags(container)
        (volume,) = [each["secret"]["secretName"] for each in pod["volumes"] if each["name"] == "tls"]
        assert (given["tls-cert-file"], volume) == ("/etc/baton/tls/tls.crt", "certificate")
        assert not {"join-pods", "tls-enrol-address"} & set(given)


def _flags(container: dict[str, Any]) -> dict[str, str]:
    return dict(text.removeprefix("--").split("=", 1) for text in container["args"] if text.startswith("--"))


def test_a_gateway_may_end_clients_tls_itself() -> None:
    """Its ports show a Secret's certificate; probes, which can show none, have a port of their own."""
    tls = {"existingSecret": "public", "clientCertificates": True}
    objects = manifests_of(render(with_values(MINIMAL, "gateway.tls", tls)))
    (container,) = find(objects, "Deployment", "baton-gateway")["spec"]["template"]["spec"]["containers"]
    ports = find(objects, "Service", "baton-gateway")["spec"]["ports"]

    files = [text for text in container["args"] if "public-tls" in text]
    assert files == [
        "--https-cert-file=/etc/baton/public-tls/tls.crt",
        "--https-key-file=/etc/baton/public-tls/tls.key",
        "--client-ca-file=/etc/baton/public-tls/ca.crt",
    ]
    assert {probe["grpc"]["port"] for name, probe in container.items() if name.endswith("Probe")} == {8009}
    assert [port.get("appProtocol") for port in ports] == ["https", None]
    assert "--insecure=true" not in container["args"]
    assert not [each for each in objects if each["kind"] == "Pod"]


def test_a_port_without_tls_asks_no_client_for_a_certificate() -> None:
    """Of the other port's clients alone one is demanded: without keys, this one is open."""
    tls = {"existingSecret": "public", "clientCertificates": True}
    route = {"enabled": True, "parentRefs": [{"name": "public"}]}
    gateway = {"tls": tls, "grpcRoute": route, "settings": {"grpcTls": False}}
    values = with_values(MINIMAL, "gateway", gateway)
    (container,) = find(manifests_of(render(values)), "Deployment", "baton-gateway")["spec"]["template"]["spec"][
        "containers"
    ]

    assert "--insecure=true" in container["args"]


def test_grpc_has_a_route_of_its_own() -> None:
    """To the Service's port of gRPC, for any method."""
    route = find(manifests("everything"), "GRPCRoute", "baton-gateway")["spec"]

    assert route["rules"] == [{"backendRefs": [{"name": "baton-gateway", "port": 8001}]}]
    assert route["hostnames"] == ["grpc.a.example"]


@pytest.mark.parametrize("name", ALL)
def test_a_node_is_ready_by_its_service_and_alive_by_its_process(name: str) -> None:
    """A node whose engine stands still gets no work before it is started again; a service of that name exists.

    A gateway is ready once it could serve, whatever becomes of the router: all would leave their Service by its health.
    """
    names = {
        "prefill": prefill_service_pb2.DESCRIPTOR.services_by_name["PrefillService"].full_name,
        "decode": decode_service_pb2.DESCRIPTOR.services_by_name["DecodeService"].full_name,
        "worker": worker_service_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name,
        "gateway": "started",
    }
    for pod_name, pod in pods(manifests(name)):
        (container,) = started_worker(pod)["containers"]
        if container.get("args", [""])[0] == "serve":
            ready, alive = container["readinessProbe"]["grpc"], container["livenessProbe"]["grpc"]

            assert ready.get("service") == names.get(container["args"][1]), pod_name
            assert alive == container["startupProbe"]["grpc"], pod_name
            assert alive["port"] == ready["port"]
            assert alive.get("service") == ("liveness" if container["args"][1] == "gateway" else None)


@pytest.mark.parametrize("name", ALL)
def test_every_generation_of_pods_is_spread_by_itself(name: str) -> None:
    """With the pods that they replace counted, 2 to 3 of 5 pairs ended on one of two nodes after a restart."""
    for pod_name, pod in pods(manifests(name)):
        for constraint in pod.get("topologySpreadConstraints", []):
            assert constraint["matchLabelKeys"] in (["pod-template-hash"], ["controller-revision-hash"]), pod_name


@pytest.mark.parametrize("name", ALL)
def test_commands_need_no_flags_in_a_pod(name: str) -> None:
    """`kubectl exec deploy/baton-gateway -- baton nodes` finds each router, and shows a certificate."""
    objects = manifests(name)
    several = [each["metadata"]["name"] for each in objects if each.get("spec", {}).get("clusterIP") == "None"]
    service = "baton-router-pods" if "kubernetes://" in str(objects) else "baton-router"

    assert several == [service] * (service != "baton-router")
    for pod_name, pod in pods(objects):
        (container,) = pod["containers"]
        flags = dict(flag.split("=", 1) for flag in container.get("args", []) if flag.startswith("--"))
        given = {each["name"]: each.get("value") for each in container["env"]}
        wanted = {f"BATON_TLS_{part}": flags.get(f"--tls-{part.lower().replace('_', '-')}") for part in _TLS_PARTS}
        if container.get("args", [""])[0] == "serve":
            assert given["BATON_ROUTER_ADDRESS"] == f"{service}.llm.svc:8010", pod_name
            assert {variable: given.get(variable) for variable in wanted} == wanted, pod_name
