"""The page /ui: its files, who may see its state, and what that says of requests."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from baton.errors import OutOfMemoryError
from baton.gateway.server import RunningGateway
from baton.internal.v1 import decode_service_pb2 as decode
from baton.v1.generation_pb2 import KvFrameTiming, KvTimeline
from gateway.fake_cluster import MODEL, FakeCluster, Loop, finished, tokens
from gateway.rest import ask

_COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": [5, 6, 7], "max_tokens": 2, "temperature": 0}


def _state(gateway: RunningGateway) -> Any:
    reply = ask(gateway, "/ui/state")
    assert reply.status == 200
    return reply.body


def test_the_page_has_all_that_it_asks_for(gateway: RunningGateway) -> None:
    """No file is missing, none comes from elsewhere, and nothing may be put into a frame."""
    page = ask(gateway, "/ui")
    wanted = re.findall(r'(?:href|src)="(/[^"]+)"', page.data.decode())
    scripts = [ask(gateway, path).data.decode() for path in wanted if path.endswith(".js")]
    wanted += [path for script in scripts for path in re.findall(r'from "([^"]+)"', script)]

    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert len(wanted) >= 7
    for path in wanted:
        reply = ask(gateway, path)
        assert (path, reply.status) == (path, 200)
        assert path.startswith("/ui/")
        assert reply.headers["x-content-type-options"] == "nosniff"


def test_the_state_tells_of_nodes_and_of_requests(gateway: RunningGateway, cluster: FakeCluster) -> None:
    """The latest request first; frames are timed once somebody has looked."""

    async def script(request: decode.DecodeServiceGenerateRequest) -> AsyncIterator[Any]:
        yield tokens(0, [8, 9])
        last = finished(request, cluster.decodes[0].node_id)
        if request.wants_kv_timeline:
            frames = [KvFrameTiming(layer_count=1, token_count=3, byte_count=64, ready_micros=10, arrived_micros=30)]
            last.finished.summary.kv_timeline.CopyFrom(KvTimeline(frames=frames, computed_micros=20))
        yield last

    for node in cluster.decodes:
        node.script = script
    ask(gateway, "/v1/completions", _COMPLETION)
    before = _state(gateway)
    ask(gateway, "/v1/completions", _COMPLETION)
    state = _state(gateway)

    assert before["timeline"] is None
    assert {node["id"] for node in state["nodes"]} >= {node.node_id for node in cluster.decodes}
    latest, earlier = state["requests"]
    assert latest["began_at"] >= earlier["began_at"]
    assert state["timeline"] == {
        "name": latest["name"],
        "computed": 2e-5,
        "frames": [[0, 1, 0, 3, 64, 1e-5, 3e-5]],
    }
    assert (latest["state"], latest["prompt_tokens"], latest["output_tokens"]) == ("done", 3, 2)
    terms = {pair["term"]: pair for pair in latest["terms"]}
    assert terms["exposed"] == {"term": "exposed", "estimated_seconds": 0.0, "measured_seconds": 0.025}
    assert terms["start"]["measured_seconds"] == 0.025
    assert 0 <= latest["first_token_seconds"] <= latest["seconds"]


def test_a_request_that_failed_says_why(gateway: RunningGateway, cluster: FakeCluster) -> None:
    """In the words that the client was told."""

    async def script(request: decode.DecodeServiceGenerateRequest) -> AsyncIterator[Any]:
        raise OutOfMemoryError("no room for 3 tokens")
        yield

    for node in cluster.decodes:
        node.script = script
    reply = ask(gateway, "/v1/completions", _COMPLETION)
    (request,) = _state(gateway)["requests"]

    assert reply.status >= 400
    assert request["state"] == "failed"
    assert "no room for 3 tokens" in request["error"]


def test_a_client_that_leaves_has_not_failed(gateway: RunningGateway, cluster: FakeCluster) -> None:
    """Somebody has pressed Stop: that is said, in words."""

    async def script(request: decode.DecodeServiceGenerateRequest) -> AsyncIterator[Any]:
        yield tokens(0, [8])
        await asyncio.Event().wait()

    for node in cluster.decodes:
        node.script = script
    connection = http.client.HTTPConnection("127.0.0.1", gateway.http_port, timeout=20)
    headers = {"content-type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps({**_COMPLETION, "stream": True}), headers)
    assert connection.getresponse().readline().startswith(b"data: ")
    connection.close()
    while (request := _state(gateway)["requests"][0])["state"] in ("placing", "prefilling", "decoding"):
        pass

    assert (request["state"], request["error"]) == ("cancelled", "the client left before the end")


def test_the_state_is_for_administrators_and_the_files_for_all(
    loop: Loop, cluster: FakeCluster, tmp_path: Path
) -> None:
    """What others ask the model is not for everybody with a key; metrics tell of them as well."""
    keys = tmp_path / "keys"
    keys.write_text("me:sk-secret-0123456789\nops:sk-admin admin\n")
    mine, admin = {"authorization": "Bearer sk-secret-0123456789"}, {"authorization": "Bearer sk-admin"}
    with loop.running(cluster, api_keys_file=keys) as gateway:
        assert ask(gateway, "/ui").status == 200
        for path in ("/ui/state", "/metrics"):
            assert ask(gateway, path).status == 401
            assert ask(gateway, path, headers=mine).error == (403, None, "admin_key_needed")
            assert ask(gateway, path, headers=admin).status == 200


def test_the_state_says_what_is_open_to_others(loop: Loop, cluster: FakeCluster) -> None:
    """Where the gateway was told to leave it so; names other than localhost may lead anywhere."""
    with loop.running(cluster, http_host="127.1", insecure=True) as gateway:
        doors = _state(gateway)["exposures"]

    assert [door.partition(":")[0] for door in doors] == ["http_host 127.1"] * 2


def test_the_page_can_be_switched_off(loop: Loop, cluster: FakeCluster) -> None:
    """Then it is unknown."""
    with loop.running(cluster, ui=False) as gateway:
        assert ask(gateway, "/ui").status == 404
        assert ask(gateway, "/ui/state").status == 404
