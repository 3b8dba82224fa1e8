"""How machines outside the cluster join."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.config.settings import load_settings, parse_flags
from baton.decode.settings import DecodeSettings
from baton.demo import checkpoint_dir
from baton.discovery.endpoints import parse_target
from baton.prefill.settings import PrefillSettings
from baton.router.machine_assignments import MachineAssignment, assigned, read_assignments
from baton.router.settings import RouterSettings
from charts.render import manifests_of, render
from tests.charts.rendering import EVERYTHING, SHARED, Manifest, find, manifests, with_values


def test_the_router_reads_what_the_chart_writes(tmp_path: Path) -> None:
    """Patterns, roles and settings arrive as they were given; numbers stay whole, texts with quotes stay texts."""
    mac, other = _assignments("everything", tmp_path)

    assert mac == MachineAssignment(
        "mac-*",
        "decode",
        {
            "model_name": "llama",
            "engine": "mlx",
            "model_dir": '/models/a "b"',
            "num_blocks": "16384",
            "share_prompts": "false",
        },
    )
    assert (other.node_id, other.role) == ("*", "prefill")
    assert other.settings == {"model_name": "llama", "model_dir": "/m", "drain_seconds": "0.5"}


def test_machines_take_what_they_are_told(tmp_path: Path) -> None:
    """Each assignment passes the settings class of its role."""
    for name in ("everything", "gpu-plus-apple"):
        for assignment in _assignments(name, tmp_path):
            settings_class = PrefillSettings if assignment.role == "prefill" else DecodeSettings
            flags = {**assignment.settings, "model_dir": str(checkpoint_dir())}

            assert load_settings(settings_class, flags).model_name == assignment.settings["model_name"]


def test_the_first_pattern_that_matches_holds(tmp_path: Path) -> None:
    """The order of the values is kept."""
    found = _assignments("everything", tmp_path)

    assert assigned(found, "mac-7").role == "decode"
    assert assigned(found, "linux-7").role == "prefill"


@pytest.mark.parametrize(
    ("name", "volume_name", "secret", "key"),
    [
        ("everything", "authority", ("join", "join.secret"), ("authority", "ca.key")),
        ("gpu-plus-apple", "authority", ("baton-authority", "join.secret"), ("baton-authority", "ca.key")),
        ("shared", "join", ("join", "join.secret"), ("authority", "tls.key")),
    ],
)
def test_secrets_are_mounted_where_the_router_looks(
    name: str, volume_name: str, secret: tuple[str, str], key: tuple[str, str]
) -> None:
    """The secret of tokens, and the authority's key, under the names of the flags: by default of the Job's Secret."""
    pod = find(manifests(name), "StatefulSet", "baton-router")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    given = parse_flags(RouterSettings, [text for text in container["args"][2:] if "--log-level" not in text])
    (mount,) = [each["mountPath"] for each in container["volumeMounts"] if each["name"] == volume_name]
    (volume,) = [each["projected"] for each in pod["volumes"] if each["name"] == volume_name]
    sources = {
        f"{mount}/{item['path']}": (each["secret"]["name"], item["key"])
        for each in volume["sources"]
        for item in each["secret"]["items"]
    }

    assert sources[str(given["join_secret_file"])] == secret
    assert sources[str(given["join_authority_key_file"])] == key
    assert volume["defaultMode"] == 0o440


def test_each_router_is_reached_by_a_service_of_its_own() -> None:
    """Nodes outside register with every one; node ports count up from the first's."""
    objects = manifests("everything")
    ports = {
        number: [
            (port["name"], port["port"], port["nodePort"])
            for port in find(objects, "Service", f"baton-router-{number}-outside")["spec"]["ports"]
        ]
        for number in (0, 1)
    }
    chosen = [find(objects, "Service", f"baton-router-{number}-outside")["spec"]["selector"] for number in (0, 1)]
    given = _router_flags(objects)

    assert ports == {
        0: [("grpc", 8010, 30010), ("join", 8012, 30012)],
        1: [("grpc", 8010, 30011), ("join", 8012, 30013)],
    }
    assert [each["statefulset.kubernetes.io/pod-name"] for each in chosen] == ["baton-router-0", "baton-router-1"]
    assert find(objects, "StatefulSet", "baton-router")["spec"]["replicas"] == 2
    assert parse_target(given["join_router_address"]) == frozenset({"10.1.0.9:30010", "10.1.0.8:30011"})
    assert given["join_cache_index_address"] == "10.1.0.9:30014"


def test_the_only_router_is_found_where_machines_join() -> None:
    """By the port alone, of its Service or of the node."""
    node_port = {"type": "NodePort", "routerNodePort": 30010}
    values = with_values(SHARED, "bareMetal.service", node_port)

    assert _router_flags(manifests("shared"))["join_router_address"] == ":8010"
    assert _router_flags(manifests_of(render(values)))["join_router_address"] == ":30010"


def test_routes_pass_tls_through_to_every_service_that_machines_need() -> None:
    """One TLSRoute per listener of the Gateway, with the name that all certificates bear."""
    objects = manifests("everything")
    routes = {
        each["spec"]["parentRefs"][0]["sectionName"]: each["spec"] for each in objects if each["kind"] == "TLSRoute"
    }
    backends = {name: spec["rules"][0]["backendRefs"][0] for name, spec in routes.items()}

    assert backends == {
        "router-0": {"name": "baton-router-0-outside", "port": 8010},
        "join-0": {"name": "baton-router-0-outside", "port": 8012},
        "router-1": {"name": "baton-router-1-outside", "port": 8010},
        "join-1": {"name": "baton-router-1-outside", "port": 8012},
        "cache-index": {"name": "baton-cache-index-outside", "port": 8011},
    }
    for spec in routes.values():
        assert spec["hostnames"] == ["baton.llm"]
        assert {key: spec["parentRefs"][0][key] for key in ("name", "namespace")} == {
            "name": "public",
            "namespace": "infra",
        }
    for name, backend in backends.items():
        ports = find(objects, "Service", backend["name"])["spec"]["ports"]
        assert backend["port"] in {port["port"] for port in ports}, name


def test_the_join_port_is_open_to_machines_and_to_pods_that_enrol() -> None:
    """Machines may come without a certificate; pods that share one have no use for it."""
    for name, roles in (("everything", {"gateway", "cache-index", "prefill", "decode", "worker"}), ("shared", set())):
        policy = find(manifests(name), "NetworkPolicy", "baton-router")["spec"]
        (rule,) = [each for each in policy["ingress"] if 8012 in {port["port"] for port in each["ports"]}]
        *pods, machines = rule["from"]

        assert {each["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for each in pods} == roles
        assert machines == {"ipBlock": {"cidr": "10.1.0.0/16"}}
        assert rule["ports"] == [{"protocol": "TCP", "port": 8012}]


def test_without_assignments_no_machine_can_join() -> None:
    """No secret, no ConfigMap, no port outside: machines bring certificates of their own, and pods enrol."""
    join = {"existingSecret": "", "assignments": []}
    values = with_values(EVERYTHING, "bareMetal.join", join)
    objects = manifests_of(render(values))
    outside = find(objects, "Service", "baton-router-0-outside")["spec"]["ports"]

    assert "join_secret_file" not in _router_flags(objects)
    assert [port["port"] for port in outside] == [8010]
    assert not [each for each in objects if each["metadata"]["name"] == "baton-machines"]


def _assignments(name: str, folder: Path) -> list[MachineAssignment]:
    path = folder / f"{name}.toml"
    path.write_text(find(manifests(name), "ConfigMap", "baton-machines")["data"]["machines.toml"])
    return list(read_assignments(path))


def _router_flags(objects: list[Manifest]) -> dict[str, str]:
    (container,) = find(objects, "StatefulSet", "baton-router")["spec"]["template"]["spec"]["containers"]
    given = parse_flags(RouterSettings, [text for text in container["args"][2:] if "--log-level" not in text])
    return {name: str(value) for name, value in given.items()}
