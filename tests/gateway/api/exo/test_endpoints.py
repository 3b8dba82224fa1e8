"""exo's cluster endpoints against a played router."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from baton.gateway.api.exo.documents import INSTANCE_TAG
from baton.gateway.api.exo.instances import MAX_INSTANCES
from baton.gateway.server import RunningGateway
from baton.gateway.settings import GatewaySettings
from baton.internal.v1 import node_pb2
from baton.internal.v1 import router_service_pb2 as router
from gateway.fake_cluster import MODEL, FakeCluster, Loop
from gateway.rest import ask
from system.plan import free_ports

PREVIEWS = f"/instance/previews?model_id={MODEL}"


def view(instance_id: str = "i-1", *node_ids: str, model: str = MODEL) -> dict[str, Any]:
    """Return the body of POST /instance."""
    runners = {node_id: f"{instance_id}.{node_id}" for node_id in node_ids or ("decode-1",)}
    assignments = {"modelId": model, "nodeToRunner": runners, "runnerToShard": {}}
    return {"instance": {INSTANCE_TAG: {"instanceId": instance_id, "shardAssignments": assignments}}}


@pytest.fixture(autouse=True)
def candidates(cluster: FakeCluster) -> None:
    """Give the router one candidate with a cost and one without."""
    estimate = router.CostEstimate(prefill_seconds=0.5, decode_seconds=1.0, total_seconds=1.5)
    cluster.router.candidates = [
        router.Candidate(decode_node_id="decode-0", estimate=estimate),
        router.Candidate(decode_node_id="decode-1", infeasible_reason="decode-1: draining"),
    ]


def test_models_name_what_can_be_asked_for(gateway: RunningGateway) -> None:
    """A size of 0 tells clients that nothing is to be downloaded."""
    (model,) = ask(gateway, "/models").body["data"]

    assert (model["name"], model["hugging_face_id"], model["storage_size_megabytes"]) == (MODEL, MODEL, 0)


def test_the_state_has_every_node_with_what_its_sensors_say(gateway: RunningGateway, cluster: FakeCluster) -> None:
    """Sensors that a node lacks are left out, and so is the memory of a node that does not tell."""
    system = node_pb2.SystemSample(gpu_usage=0.25, power_watts=30, temperature_celsius=float("nan"))
    system.memory_byte_count, system.available_memory_byte_count = 64, 32
    cluster.router.loads["decode-0"] = node_pb2.LoadReport(system=system)
    state = ask(gateway, "/state").body

    assert set(state["nodeIdentities"]) == set(state["topology"]["nodes"]) == {"decode-0", "decode-1"}
    assert state["nodeSystem"] == {"decode-0": {"gpuUsage": 0.25, "sysPower": 30.0}, "decode-1": {}}
    assert state["nodeMemory"] == {"decode-0": {"ramTotal": {"inBytes": 64}, "ramAvailable": {"inBytes": 32}}}
    assert state["instances"] == state["runners"] == {}


def test_a_path_leads_into_the_state(gateway: RunningGateway) -> None:
    """Down to a value; what is not there is not found."""
    assert ask(gateway, "/state/nodeSystem/decode-0").body == {}
    assert ask(gateway, "/state/nodeIdentities/decode%2D0/role").body == "decode"
    for path in ("/state/nodeSystem/gone", "/state/downloads/decode-0", "/state/nodeIdentities/decode-0/role/x"):
        assert ask(gateway, path).status == 404


def test_previews_are_the_candidates_with_their_cost(gateway: RunningGateway, cluster: FakeCluster) -> None:
    """Nothing is accounted for, and no cache is counted on; what cannot be is no instance, and says why."""
    preview, impossible = ask(gateway, PREVIEWS + "&prompt_tokens=100&max_tokens=7").body["previews"]

    (instance,) = preview["instance"].values()
    assert preview["error"] is None
    assert (impossible["instance"], bool(impossible["error"])) == (None, True)
    assert "pipeline" in preview["sharding"].lower()
    assert "ring" in preview["instance_meta"].lower()
    assert list(instance["shardAssignments"]["nodeToRunner"]) == ["decode-0"]
    assert preview["estimate"]["total_seconds"] == 1.5
    assert preview["estimate"]["transfer_seconds"] == 0
    asked = cluster.router.requests[-1]
    assert (asked.prompt_token_count, asked.max_token_count) == (100, 7)
    assert asked.is_dry_run
    assert asked.bypass_prefix_cache


def test_the_reference_request_fits_the_context(gateway: RunningGateway) -> None:
    """1024 and 128 tokens are too many for this model."""
    preview, _ = ask(gateway, PREVIEWS).body["previews"]

    assert preview["reference_request"] == {"prompt_tokens": 192, "max_tokens": 64}


def test_there_are_no_previews_while_no_node_can_take_a_request(gateway: RunningGateway, cluster: FakeCluster) -> None:
    """Clients ask again."""
    cluster.addresses.clear()

    assert ask(gateway, PREVIEWS).body == {"previews": []}


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [
        ("", 400, "model_id"),
        ("?model_id=", 400, "model_id"),
        ("?model_id=other", 404, "model"),
        (f"?model_id={MODEL}&prompt_tokens=0", 400, "prompt_tokens"),
        (f"?model_id={MODEL}&prompt_tokens=%D9%A1", 400, "prompt_tokens"),
        (f"?model_id={MODEL}&max_tokens=9999999999", 400, "max_tokens"),
    ],
)
def test_a_bad_query_is_refused_by_name(gateway: RunningGateway, query: str, status: int, param: str) -> None:
    """Like a bad body."""
    assert ask(gateway, "/instance/previews" + query).error[:2] == (status, param)


def test_what_is_bad_is_refused_while_the_router_is_away(
    gateway: RunningGateway, cluster: FakeCluster, loop: Loop
) -> None:
    """Nobody is asked before a request is known to be well-formed."""
    loop.call(cluster.stop_router())

    assert ask(gateway, PREVIEWS + "&prompt_tokens=0").error[:2] == (400, "prompt_tokens")
    assert ask(gateway, "/instance", {"instance": {}}).error[:2] == (400, "instance")


def test_a_pinned_placement_holds_benchmarks_and_nothing_else(gateway: RunningGateway, cluster: FakeCluster) -> None:
    """Users' requests go where the router sends them; a deleted instance is gone and stops nothing."""
    messages = [{"role": "user", "content": "x"}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 1}
    created = ask(gateway, "/instance", view())
    ask(gateway, "/bench/chat/completions", body)
    pins = [(pin.decode_node_id, pin.prefill_node_id) for pin in cluster.router.requests[-1].pins]
    ask(gateway, "/v1/chat/completions", body)
    others = list(cluster.router.requests[-1].pins)
    deleted = ask(gateway, "/instance/i-1", method="DELETE")
    ask(gateway, "/bench/chat/completions", body)

    assert created.body["instance_id"] == deleted.body["instance_id"] == "i-1"
    assert pins == [("decode-1", "")]
    assert others == list(cluster.router.requests[-1].pins) == []
    assert ask(gateway, "/instance/i-1").status == ask(gateway, "/instance/i-1", method="DELETE").status == 404


def test_an_instance_is_shown_with_its_runners_ready(gateway: RunningGateway) -> None:
    """In the state and by itself."""
    ask(gateway, "/instance", view())
    shown = ask(gateway, "/instance/i-1").body

    assert ask(gateway, "/state/instances/i-1").body == shown
    runners = list(shown[INSTANCE_TAG]["shardAssignments"]["runnerToShard"])
    assert [ask(gateway, f"/state/runners/{runner}").body for runner in runners] == [{"RunnerReady": {}}]


def test_a_runner_whose_node_has_gone_has_failed(gateway: RunningGateway, cluster: FakeCluster) -> None:
    """Until the instance goes too."""
    ask(gateway, "/instance", view())
    del cluster.addresses["decode-1"]

    (runner,) = ask(gateway, "/state/runners").body.values()
    assert "decode-1" in runner["RunnerFailed"]["errorMessage"]


NODES = "instance.shardAssignments.nodeToRunner"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "instance"),
        ({"instance": {}}, "instance"),
        ({"instance": {"a": {"instanceId": "x"}}}, "instance[...].shardAssignments"),
        (view("no spaces"), "instance.instanceId"),
        (view("i", "gone"), NODES),
        (view("i", "decode-0", "decode-1"), NODES),
        (view("i", model="other"), NODES),
    ],
)
def test_what_is_no_placement_is_refused_by_name(gateway: RunningGateway, body: Any, param: str) -> None:
    """And pins nothing."""
    assert ask(gateway, "/instance", body).error[:2] == (400, param)
    assert ask(gateway, "/state/instances").body == {}


def test_there_is_a_limit_of_instances(gateway: RunningGateway) -> None:
    """One that is posted again counts once."""
    statuses = [ask(gateway, "/instance", view(f"i-{index}")).status for index in range(MAX_INSTANCES)]

    assert set(statuses) == {200}
    assert ask(gateway, "/instance", view("i-0")).status == 200
    assert ask(gateway, "/instance", view("more")).status == 429


@pytest.mark.parametrize(
    ("path", "method"), [("/models", "POST"), ("/instance", "GET"), ("/instance/x", "POST"), ("/state", "DELETE")]
)
def test_other_methods_are_refused(gateway: RunningGateway, path: str, method: str) -> None:
    """With what is allowed."""
    reply = ask(gateway, path, method=method)

    assert reply.status == 405
    assert reply.headers["allow"]


def test_a_web_page_cannot_pin_without_asking(gateway: RunningGateway) -> None:
    """A browser sends plain text to any address."""
    assert ask(gateway, "/instance", view(), headers={"content-type": "text/plain"}).status == 415


@pytest.mark.parametrize(
    ("settings", "is_served"),
    [
        ({"http_host": "127.0.0.1"}, True),
        ({"http_host": "localhost"}, True),
        ({"http_host": "192.0.2.1"}, False),
        ({"http_host": "gateway.example"}, False),
        ({"http_host": "192.0.2.1", "api_keys_file": "keys"}, True),
    ],
)
def test_they_are_served_on_loopback_and_behind_keys(tmp_path: Path, settings: dict[str, Any], is_served: bool) -> None:
    """Elsewhere anybody could pin."""
    assert GatewaySettings(model_dir=tmp_path, insecure=True, **settings).serves_administrators == is_served


@pytest.fixture
def without_exo(loop: Loop, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningGateway]:
    """Run a gateway whom others than this machine could ask."""
    monkeypatch.setattr(GatewaySettings, "serves_administrators", False)
    with loop.running(cluster) as running:
        yield running


def test_where_they_are_not_served_nothing_tells_of_them(without_exo: RunningGateway) -> None:
    """The bench endpoint stays, and the document tells of nothing else: nobody but an administrator orders models."""
    paths = ask(without_exo, "/openapi.json").body["paths"]
    orders = [
        ask(without_exo, f"/v1/models/{verb}", {"model": "x", "source": "x"}).status for verb in ("load", "unload")
    ]

    assert {ask(without_exo, path).status for path in ("/models", "/state", "/state/instances", PREVIEWS)} == {404}
    assert orders == [405, 405]
    assert "/bench/chat/completions" in paths
    assert not any(path.startswith(("/state", "/instance", "/models", "/v1/models/load")) for path in paths)


def test_with_keys_they_need_an_administrators(loop: Loop, cluster: FakeCluster, tmp_path: Any) -> None:
    """Reading the state as well; whoever may use the model is not told of its nodes."""
    keys = tmp_path / "keys"
    keys.write_text("me:sk-mine\nops:sk-admin admin\n")
    keys.chmod(0o600)
    with loop.running(cluster, api_keys_file=keys) as running:
        mine, admin = {"authorization": "Bearer sk-mine"}, {"authorization": "Bearer sk-admin"}

        assert ask(running, "/state").status == ask(running, "/instance", view()).status == 401
        assert ask(running, "/state", headers=mine).error == (403, None, "admin_key_needed")
        assert ask(running, "/instance", view(), headers=mine).status == 403
        assert ask(running, "/v1/models", headers=mine).status == 200
        assert ask(running, "/state", headers=admin).status == ask(running, "/v1/models", headers=admin).status == 200


def test_nothing_is_pinned_where_several_processes_share_the_port(
    loop: Loop, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next request may reach another one: a pin that holds for some is worse than none."""
    ports = free_ports(["http", "grpc", "metrics"])
    wanted = {f"{name}_port": port for name, port in ports.items()}
    monkeypatch.setenv("BATON_PROCESS_INDEX", "0")
    with loop.running(cluster, processes=2, **wanted) as running:
        refused = ask(running, "/instance", view())

        assert refused.error == (404, None, "instances_unavailable")
        assert ask(running, "/state/instances").body == {}
        assert len(ask(running, PREVIEWS).body["previews"]) == 2


LINKS = "/v1/instance-links"


def test_a_link_has_one_instance_compute_for_another(gateway: RunningGateway, cluster: FakeCluster) -> None:
    """Benchmarks run on the decode node of the one with the node of the other; without the link, on either."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    for index in range(2):
        ask(gateway, "/instance", view(f"i-{index}", f"decode-{index}"))
    link = {"prefill_instances": ["i-1"], "decode_instances": ["i-1"]}
    created = ask(gateway, LINKS, link).body
    (shown,) = ask(gateway, LINKS).body
    ask(gateway, "/bench/chat/completions", body)
    pins = [(pin.decode_node_id, pin.prefill_node_id) for pin in cluster.router.requests[-1].pins]
    deleted = ask(gateway, f"{LINKS}/{shown['linkId']}", method="DELETE")

    assert shown == {"linkId": created["link_id"], "prefillInstances": ["i-1"], "decodeInstances": ["i-1"]}
    assert pins == [("decode-0", ""), ("decode-1", "")]
    assert (deleted.status, ask(gateway, LINKS).body) == (200, [])
    assert ask(gateway, f"{LINKS}/{shown['linkId']}", method="DELETE").status == 404


@pytest.mark.parametrize(
    ("prefill", "decode", "param"),
    [
        ([], ["i-0"], "prefill_instances"),
        (["i-0"], ["gone"], "decode_instances[0]"),
        (["i-0", "gone"], ["i-0"], "prefill_instances[1]"),
        (["i-0"], ["i-1"], "prefill_instances[0]"),  # its node decodes, and computes for nobody else
    ],
)
def test_what_cannot_be_linked_is_refused_by_name(
    gateway: RunningGateway, prefill: list[str], decode: list[str], param: str
) -> None:
    """Nothing is linked then."""
    for index in range(2):
        ask(gateway, "/instance", view(f"i-{index}", f"decode-{index}"))

    assert ask(gateway, LINKS, {"prefill_instances": prefill, "decode_instances": decode}).error[:2] == (400, param)
    assert ask(gateway, LINKS).body == []
