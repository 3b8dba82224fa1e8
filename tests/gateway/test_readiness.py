"""Health over gRPC, `/ready`, and what requests get: they agree."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2

from baton.gateway.server import RunningGateway
from baton.internal.v1.health_list_pb2 import HealthList
from baton.v1.generation_service_pb2 import ListModelsRequest
from baton.v1.generation_service_pb2_grpc import GenerationServiceStub
from gateway.fake_cluster import FakeCluster, Loop
from gateway.rest import ask

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
WAIT_SECONDS = 20.0


class Told:
    """What one gateway says of itself; its connection to gRPC stays open."""

    def __init__(self, gateway: RunningGateway) -> None:
        self._http_port = gateway.http_port
        self._channel = grpc.insecure_channel(f"127.0.0.1:{gateway.grpc_port}")
        ask = self._channel.unary_unary("/grpc.health.v1.Health/List", response_deserializer=HealthList.FromString)
        self._list = ask

    def health(self) -> dict[str, int]:
        """Return the health of every name."""
        return {name: state.status for name, state in self._list(b"", timeout=WAIT_SECONDS).statuses.items()}

    def ready(self) -> tuple[int, bytes]:
        """Return status and body of `/ready`."""
        connection = http.client.HTTPConnection("127.0.0.1", self._http_port, timeout=WAIT_SECONDS)
        try:
            connection.request("GET", "/ready")
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def models(self) -> list[int]:
        """Return the longest sequences of the models that are listed."""
        listed = GenerationServiceStub(self._channel).ListModels(ListModelsRequest(), timeout=WAIT_SECONDS)  # type: ignore[no-untyped-call]
        return [model.max_context_token_count for model in listed.models]

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


@pytest.fixture
def told(gateway: RunningGateway) -> Iterator[Told]:
    """Return what the gateway says, once it says that requests would be taken."""
    told = Told(gateway)
    wait_until(lambda: told.ready()[0] == 200)
    yield told
    told.close()


def wait_until(is_true: Callable[[], bool]) -> None:
    """Return when a question is answered with yes."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def healths(*, is_ready: bool) -> dict[str, int]:
    """Return what health says of a gateway that has been ready once, and is or is not now."""
    ready = SERVING if is_ready else NOT_SERVING
    return {"liveness": SERVING, "started": SERVING, "": ready, "baton.v1.GenerationService": ready}


@pytest.mark.parametrize("fault", ["silent", "draining", "gone", "no router"])
def test_health_says_what_ready_says(loop: Loop, cluster: FakeCluster, told: Told, fault: str) -> None:
    """Both turn with the nodes and the router, and back; a pod is neither taken out nor started again for it."""
    assert told.health() == healths(is_ready=True)
    addresses = dict(cluster.addresses)
    if fault == "no router":
        loop.call(cluster.stop_router())
    elif fault == "gone":
        cluster.addresses.clear()
    else:
        for node_id in addresses:
            cluster.router.silences[node_id] = Duration(seconds=0 if fault == "silent" else 60)
            cluster.router.unusable_reasons[node_id] = "" if fault == "silent" else "draining"
    wait_until(lambda: told.ready()[0] == 503)
    causes = {"silent": b"decode-1: no report for", "draining": b"decode-0: draining; decode-1: draining"}
    causes |= {"gone": b"no decode node serves", "no router": b"the router"}

    assert causes[fault] in told.ready()[1]
    assert told.health() == healths(is_ready=False)

    cluster.addresses |= addresses
    cluster.router.silences.clear()
    cluster.router.unusable_reasons.clear()
    if fault == "no router":
        loop.call(cluster.start_router())
    wait_until(lambda: told.ready()[0] == 200)
    assert told.health() == healths(is_ready=True)


def test_with_keys_only_administrators_hear_of_nodes(loop: Loop, cluster: FakeCluster, tmp_path: Path) -> None:
    """Who asks whether it is ready shows no key; who may use the model is not told of machines."""
    (tmp_path / "keys").write_text("me:sk-mine\nops:sk-admin admin\n")
    with loop.running(cluster, api_keys_file=tmp_path / "keys") as running:
        told = Told(running)
        wait_until(lambda: told.ready()[0] == 200)
        for node_id in cluster.addresses:
            cluster.router.silences[node_id] = Duration(seconds=60)
            cluster.router.unusable_reasons[node_id] = "draining"
        wait_until(lambda: told.ready()[0] == 503)
        ready = told.ready()[1]
        mine, admins = (
            ask(running, "/v1/models", headers={"authorization": f"Bearer {key}"}).body["data"][0]["cause"]
            for key in ("sk-mine", "sk-admin")
        )
        told.close()

    assert b"no decode node takes requests" in ready
    assert b"decode-0" not in ready
    assert mine == ""
    assert "decode-0: draining" in admins


def test_one_node_that_takes_requests_is_enough(cluster: FakeCluster, told: Told) -> None:
    """And the gateway looks again when that one would have fallen silent, however long its pause."""
    cluster.router.silences |= {"decode-0": Duration(seconds=-1), "decode-1": Duration(seconds=60)}
    num_looks = cluster.router.num_looks
    wait_until(lambda: cluster.router.num_looks > num_looks + 1)

    assert told.ready()[0] == 200


def test_silence_is_noticed_between_two_looks(loop: Loop, cluster: FakeCluster) -> None:
    """A second may pass until a node is silent that was heard just now, and another until the next look."""
    cluster.router.silences |= dict.fromkeys(("decode-0", "decode-1"), Duration(nanos=50_000_000))
    with loop.running(cluster, node_poll_seconds=600.0):
        wait_until(lambda: cluster.router.num_looks > 1)


def test_a_gateway_that_goes_says_so_and_serves_for_the_pause(loop: Loop, cluster: FakeCluster) -> None:
    """Load balancers hear of it before a connection is refused; whoever asks meanwhile is answered."""
    with loop.running(cluster, drain_pause_seconds=1.5) as gateway:
        told = Told(gateway)
        wait_until(lambda: told.ready()[0] == 200)
        before = told.models()
        loop.begin_stop()
        wait_until(lambda: told.ready()[0] == 503)

        assert b"shutting down" in told.ready()[1]
        assert set(told.health().values()) == {NOT_SERVING}
        assert told.models() == before
        told.close()


def test_models_are_listed_with_the_models_own_context_while_no_node_is_there(loop: Loop, cluster: FakeCluster) -> None:
    """Not with 0, which clients take for a limit; where the folder does not say either, the answer is UNAVAILABLE."""
    cluster.decodes.clear()
    with loop.running(cluster) as gateway:
        told = Told(gateway)
        wait_until(lambda: b"no decode node" in told.ready()[1])
        with pytest.raises(grpc.RpcError, match="no decode node serves tiny"):
            told.models()
        told.close()
    config = cluster.model_dir / "config.json"
    config.write_text('{"text_config": {"max_position_embeddings": 640}}')
    try:
        with loop.running(cluster) as gateway:
            told = Told(gateway)
            assert told.models() == [640]
            told.close()
    finally:
        config.unlink()
