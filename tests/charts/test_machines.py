"""How machines outside the cluster join."""

from __future__ import annotations

from pathlib import Path

from baton.config.settings import load_settings, parse_flags
from baton.decode.settings import DecodeSettings
from baton.demo import checkpoint_dir
from baton.prefill.settings import PrefillSettings
from baton.router.machine_assignments import MachineAssignment, assigned, read_assignments
from baton.router.settings import RouterSettings
from charts.render import manifests_of, render
from tests.charts.rendering import EVERYTHING, Manifest, find, manifests, with_values


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


def test_secrets_are_mounted_where_the_router_looks(tmp_path: Path) -> None:
    """The secret of the token, and the authority's key from a Secret of its own, under the names of the flags."""
    pod = find(manifests("everything"), "Deployment", "baton-router")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    given = parse_flags(RouterSettings, [text for text in container["args"][2:] if "--log-level" not in text])
    (mount,) = [each["mountPath"] for each in container["volumeMounts"] if each["name"] == "join"]
    (volume,) = [each["projected"] for each in pod["volumes"] if each["name"] == "join"]
    sources = {
        f"{mount}/{item['path']}": (each["secret"]["name"], item["key"])
        for each in volume["sources"]
        for item in each["secret"]["items"]
    }

    assert sources[str(given["join_secret_file"])] == ("join", "join.secret")
    assert sources[str(given["join_authority_key_file"])] == ("authority", "tls.key")
    assert volume["defaultMode"] == 0o440


def test_machines_are_told_ports_that_lead_inside() -> None:
    """The Service's port of the router, by which its join service is reached too: the node port where there is one."""
    node_port = _router_flags(manifests("everything"))
    balanced = _router_flags(manifests("gpu-plus-apple"))
    service = find(manifests("everything"), "Service", "baton-router-outside")["spec"]

    assert (node_port["join_router_address"], balanced["join_router_address"]) == (":30010", ":8010")
    assert node_port["join_cache_index_address"] == "10.1.0.9:30011"
    assert [(port["name"], port["port"], port.get("nodePort")) for port in service["ports"]] == [
        ("grpc", 8010, 30010),
        ("join", 8012, 30012),
    ]


def test_routes_pass_tls_through_to_every_service_that_machines_need() -> None:
    """One TLSRoute per listener of the Gateway, with the name that all certificates bear."""
    objects = manifests("everything")
    routes = {
        each["spec"]["parentRefs"][0]["sectionName"]: each["spec"] for each in objects if each["kind"] == "TLSRoute"
    }
    backends = {name: spec["rules"][0]["backendRefs"][0] for name, spec in routes.items()}

    assert backends == {
        "router": {"name": "baton-router-outside", "port": 8010},
        "join": {"name": "baton-router-outside", "port": 8012},
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


def test_the_join_port_is_open_to_machines_alone() -> None:
    """Pods have no use for it; machines may come without a certificate."""
    policy = find(manifests("everything"), "NetworkPolicy", "baton-router")["spec"]
    (rule,) = [each for each in policy["ingress"] if 8012 in {port["port"] for port in each["ports"]}]

    assert rule["from"] == [{"ipBlock": {"cidr": "10.1.0.0/16"}}]
    assert rule["ports"] == [{"protocol": "TCP", "port": 8012}]


def test_without_a_secret_nobody_can_join() -> None:
    """No port, no key, no ConfigMap: machines bring certificates of their own."""
    values = with_values(with_values(EVERYTHING, "bareMetal.join.existingSecret", ""), "bareMetal.join.assignments", [])
    objects = manifests_of(render(values))

    assert "8012" not in str([each for each in objects if each["metadata"]["name"].startswith("baton-router")])
    assert "join" not in {each["metadata"]["name"].rpartition("-")[2] for each in objects}
    assert not [each for each in objects if each["metadata"]["name"] == "baton-machines"]


def _assignments(name: str, folder: Path) -> list[MachineAssignment]:
    path = folder / f"{name}.toml"
    path.write_text(find(manifests(name), "ConfigMap", "baton-machines")["data"]["machines.toml"])
    return list(read_assignments(path))


def _router_flags(objects: list[Manifest]) -> dict[str, str]:
    (container,) = find(objects, "Deployment", "baton-router")["spec"]["template"]["spec"]["containers"]
    given = parse_flags(RouterSettings, [text for text in container["args"][2:] if "--log-level" not in text])
    return {name: str(value) for name, value in given.items()}
