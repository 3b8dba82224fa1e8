"""Bodies damaged at random: whatever comes, the answer is 200 or an error that says why, and nothing else suffers."""

from __future__ import annotations

import http.client
import json
from collections import Counter

import pytest

from system.bad_input.mutation import Mutator
from system.cluster import Cluster
from system.rest import CHAT, CHAT_PATH, COMPLETION, COMPLETION_PATH

pytestmark = pytest.mark.usefixtures("bystander")

NUM_BODIES = 500
SEED = 20260101

_SOUND = (
    (CHAT_PATH, {**CHAT, "max_tokens": 2, "stop": ["x"], "logprobs": True, "top_logprobs": 2}),
    (CHAT_PATH, {**CHAT, "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}, "seed": 1}),
    (COMPLETION_PATH, {**COMPLETION, "max_tokens": 2, "prompt": [20, 21, 22], "logit_bias": {"30": 5}, "n": 2}),
    (COMPLETION_PATH, {**COMPLETION, "max_tokens": 2, "prompt": ["abc", "xyz"], "top_p": 0.5, "logprobs": 1}),
)


def test_damaged_bodies_are_answered_or_refused(demo_cluster: Cluster) -> None:
    """200, 400 or 404 on one connection that stays open; a refusal has a message."""
    mutator, statuses = Mutator(SEED), Counter[int]()
    connection = http.client.HTTPConnection(*demo_cluster.http_address, timeout=30)
    connection.connect()
    socket = connection.sock
    for index in range(NUM_BODIES):
        path, sound = _SOUND[index % len(_SOUND)]
        body = mutator.body(sound)
        connection.request("POST", path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        statuses[response.status] += 1

        assert response.status in (200, 400, 404), (body, answer)
        if response.status != 200:
            assert json.loads(answer)["error"]["message"], body
        else:
            assert b'"error"' not in answer, (body, answer)
    assert connection.sock is socket
    connection.close()
    assert statuses[200] > 5
    assert statuses[400] > NUM_BODIES / 2
