"""Random bodies to every endpoint that takes one."""

from __future__ import annotations

import http.client
import json
import random
from typing import Any

from baton.gateway.server import RunningGateway
from gateway.bodies import ROUTES, SMALLEST
from gateway.rest import ask

NUM_BODIES = 1000

_ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**70), 1.5, 1e308, "", "x", "\0", "é😀", "\ud800", "x" * 5000),
    *([], [None], [1], ["x"], [[]], [[1]], [1] * 5000, {}, [{}], {"a": {}}, {"type": "text"}, {"type": "ephemeral"}),
    *([{"role": "user", "content": "x"}], [{"type": "text", "text": "x"}], [{"type": "message"}]),
    [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
]


def _mutated(generator: random.Random, value: Any, depth: int = 0) -> Any:
    if depth > 4 or generator.random() < 0.25:
        return generator.choice(_ODD)
    if isinstance(value, dict):
        kept = {name: part for name, part in value.items() if generator.random() > 0.05}
        return {
            name: _mutated(generator, part, depth + 1) if generator.random() < 0.4 else part
            for name, part in kept.items()
        }
    if isinstance(value, list):
        return [_mutated(generator, part, depth + 1) for part in value] * generator.choice([0, 1, 1, 2])
    return value


def _body(generator: random.Random, path: str) -> Any:
    fields = ROUTES[path].body.__struct_fields__
    chosen = generator.sample(fields, generator.randint(0, min(4, len(fields))))
    limit = {"max_tokens": 2} if "max_tokens" in fields else {}
    body = SMALLEST[path] | limit | {name: generator.choice(_ODD) for name in chosen}
    return _mutated(generator, body) if generator.random() < 0.6 else body


def test_random_bodies_are_served_or_refused_and_leave_nothing_behind(gateway: RunningGateway) -> None:
    """Never a failure of the gateway; every refusal says what is wrong, and no request stays in work."""
    generator = random.Random(5)
    connection = http.client.HTTPConnection("127.0.0.1", gateway.http_port, timeout=20)
    statuses = set()
    for _ in range(NUM_BODIES):
        path = generator.choice(list(ROUTES))
        body = json.dumps(_body(generator, path))
        connection.request("POST", path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        statuses.add(response.status)
        assert response.status in (200, 400, 404), (path, body[:500], answer)
        assert response.status == 200 or json.loads(answer)["error"]["message"]
    connection.close()

    assert statuses == {200, 400, 404}
    assert b"\nbaton_gateway_active_requests 1\n" in ask(gateway, "/metrics").data
