"""Command lines of the processes of `baton up`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from baton.agent.child import STOP_GRACE_SECONDS
from baton.cli.local.launch import LocalCluster, ProcessPlan, model_workers, plan_processes, write_assignment
from baton.cli.local.ports import free_ports
from baton.cli.local.topology import NodeSpec
from baton.cli.serve import load_service, take_option
from baton.config.settings import load_settings, parse_flags
from baton.errors import ConfigurationError
from baton.router.machine_assignments import assigned, read_assignments


@pytest.fixture
def site(tmp_path: Path) -> LocalCluster:
    """Return a site with a model folder that has only a config."""
    (tmp_path / "config.json").write_text("{}")
    ports = free_ports("127.0.0.1", ["http", "grpc"], {})
    return LocalCluster("127.0.0.1", ports["http"], ports["grpc"], tmp_path, "tiny", "info")


def _value(plan: ProcessPlan, flag: str) -> str:
    return next(text.partition("=")[2] for text in plan.child.arguments if text.startswith(f"--{flag}="))


def test_a_worker_of_a_further_model_is_as_the_first_node_but_for_the_size_of_its_mock(site: LocalCluster) -> None:
    """Which is that of its own folder: one that turned out to be larger than planned would be loaded for ever."""
    node = NodeSpec("worker", "mock", 1, {"mock_hardware": "m2", "mock_shape": "llama-3.1-8b"})
    started = model_workers(site, (node,), plan_processes(site, (node,)))("tiny", site.model_dir, 1 << 20)

    assert "--mock-hardware=m2" in started.child.arguments
    assert "--planned-kv-bytes=1048576" in started.child.arguments
    assert not [each for each in started.child.arguments if "mock-shape" in each]


def _memory_shares(site: LocalCluster, nodes: Sequence[NodeSpec]) -> Mapping[str, str]:
    """Return the shares of their GPUs' memory that nodes are told, by node id."""
    flag = "--device-memory-share="
    return {
        plan.child.name: text.removeprefix(flag)
        for plan in plan_processes(site, nodes)
        for text in plan.child.arguments
        if text.startswith(flag)
    }


def test_every_service_takes_the_flags_that_it_is_given(site: LocalCluster) -> None:
    """No command line of `baton up` is refused by the settings class of its service."""
    plans = plan_processes(site, (NodeSpec("prefill", "mock"), NodeSpec("decode", "mock", 2, {"num_blocks": "64"})))

    for plan in plans:
        arguments = list(plan.child.arguments)
        service = load_service(plan.role)
        _, flags = take_option(arguments[arguments.index(plan.role) + 1 :], "--log-level")
        load_settings(service.settings_class, parse_flags(service.settings_class, flags))
    assert [plan.child.name for plan in plans] == [
        *("cache-index", "router", "prefill-mock", "decode-mock-1", "decode-mock-2", "gateway")
    ]


def test_everyone_is_told_where_the_others_are(site: LocalCluster) -> None:
    """Workers and gateway get the router's address, workers and router that of the cache index."""
    plans = {plan.child.name: plan for plan in plan_processes(site, (NodeSpec("decode", "mock"),))}

    router, cache_index = plans["router"].address, plans["cache-index"].address
    assert _value(plans["decode-mock"], "router-address") == _value(plans["gateway"], "router-address") == router
    assert _value(plans["decode-mock"], "cache-index-address") == cache_index
    assert _value(plans["router"], "cache-index-address") == cache_index


def test_adapters_reach_every_node(site: LocalCluster) -> None:
    """Prefill and decode nodes load the same; other services have no such flag."""
    nodes = (NodeSpec("prefill", "torch"), NodeSpec("decode", "mlx"))
    plans = plan_processes(replace(site, lora="a=x,b=y"), nodes)
    told = {plan.role for plan in plans if any(text == "--lora=a=x,b=y" for text in plan.child.arguments)}

    assert told == {"prefill", "decode"}


def test_options_of_a_node_reach_its_worker(site: LocalCluster) -> None:
    """A key of the topology file becomes a flag."""
    plans = plan_processes(site, (NodeSpec("decode", "mock", 1, {"num_threads": "7", "num_blocks": "64"}),))

    worker = next(plan for plan in plans if plan.role == "decode")

    assert _value(worker, "num-threads") == "7"
    assert _value(worker, "num-blocks") == "64"
    assert worker.child.environment["GOMP_SPINCOUNT"] == "0"


def test_nodes_on_one_gpu_share_its_memory(site: LocalCluster) -> None:
    """Each would fill it, were it alone; one whose share is given keeps it, and other devices are their own."""
    nodes = (
        NodeSpec("decode", "torch", 2, {"device": "cuda"}),
        NodeSpec("prefill", "torch", 1, {"device": "cuda:0", "device_memory_share": "0.2"}),
        NodeSpec("prefill", "torch", 1, {"device": "cuda:1"}),
        NodeSpec("prefill", "torch", 2, {"device": "cpu"}),
        NodeSpec("decode", "mlx", 2),
        NodeSpec("decode", "mock", 2),
    )

    shares = _memory_shares(site, nodes)

    assert shares == {
        "decode-torch-1": "0.3000",
        "decode-torch-2": "0.3000",
        "prefill-torch-1": "0.2",
        "decode-mlx-1": "0.4500",
        "decode-mlx-2": "0.4500",
    }


def test_a_node_over_several_gpus_shares_each_of_them(site: LocalCluster) -> None:
    """It can take no more of any than of the one that most nodes compute on; every rank takes as much."""
    nodes = (
        NodeSpec("decode", "torch", 1, {"device": "cuda", "tensor_parallel": "4"}),
        NodeSpec("prefill", "torch", 1, {"device": "cuda:2", "tensor_parallel": "2"}),
        NodeSpec("prefill", "torch", 1, {"device": "cuda:3"}),
        NodeSpec("prefill", "torch", 1, {"device": "cuda:4"}),
    )

    assert _memory_shares(site, nodes) == {
        "decode-torch": "0.3000",
        "prefill-torch-1": "0.3000",
        "prefill-torch-2": "0.3000",
    }


def test_the_environment_says_where_nodes_compute_and_what_they_take(
    site: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flag would beat the share that it gives; its devices are shared like those of a node's own options."""
    monkeypatch.setenv("BATON_DECODE_DEVICE_MEMORY_SHARE", "0.3")
    monkeypatch.setenv("BATON_DECODE_DEVICE", "cuda")
    monkeypatch.setenv("BATON_PREFILL_DEVICE", "cuda:0")

    shares = _memory_shares(site, (NodeSpec("decode", "torch"), NodeSpec("prefill", "torch")))

    assert shares == {"prefill-torch": "0.4500"}


def test_an_environment_that_nodes_would_refuse_is_named(site: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any of them is started."""
    monkeypatch.setenv("BATON_DECODE_TENSOR_PARALLEL", "many")

    with pytest.raises(ConfigurationError, match="environment variable BATON_DECODE_TENSOR_PARALLEL"):
        plan_processes(site, (NodeSpec("decode", "torch"),))


def test_workers_drain_long_before_they_are_killed(site: LocalCluster) -> None:
    """Else a client of a running stream would lose its connection without being told why."""
    plans = plan_processes(site, (NodeSpec("decode", "mock"),))

    worker = next(plan for plan in plans if plan.role == "decode")

    assert float(_value(worker, "drain-seconds")) < STOP_GRACE_SECONDS / 2


def test_what_joins_runs_what_runs_here(site: LocalCluster, tmp_path: Path) -> None:
    """The same model, which they take from the nodes here, in the same number formats."""
    lan = replace(site, state_dir=tmp_path / "state")
    folder = tmp_path / "state" / str(site.http_port)
    folder.mkdir(parents=True)
    (folder / "address").write_text("192.168.1.5")  # of an earlier time

    spec = NodeSpec("worker", "torch", options={"dtype": "bfloat16"})
    plans = plan_processes(lan, (spec,))

    write_assignment(lan, spec, plans)

    found = assigned(read_assignments(folder / "assignments.toml"), "any-mac")
    assert (found.role, found.settings["model_name"], found.settings["dtype"]) == ("worker", "tiny", "bfloat16")
    node = next(plan.address for plan in plans if plan.engine)
    assert found.settings["weight_sources"] == node.removeprefix("127.0.0.1")
    assert "model_dir" not in found.settings
    assert not (folder / "address").exists()


def test_every_process_knows_where_the_door_is(site: LocalCluster, tmp_path: Path) -> None:
    """It opens later, for all of them at once; the router alone takes machines in."""
    plans = plan_processes(replace(site, state_dir=tmp_path), (NodeSpec("worker", "mock"),))

    assert {_value(plan, "tls-lan-dir") for plan in plans} == {str(tmp_path / str(site.http_port))}
    assert [plan.role for plan in plans if any("--join-port=" in text for text in plan.child.arguments)] == ["router"]
