"""The table of the REST API: every parameter that a schema takes has an effect that is seen, or is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.gateway.server import RunningGateway
from gateway.api.parameters.bench_rows import BENCH_ROWS
from gateway.api.parameters.body_fields import field_paths
from gateway.api.parameters.messages_rows import COUNT_ROWS, DETOKENIZE_ROWS, MESSAGES_ROWS, TOKENIZE_ROWS
from gateway.api.parameters.openai_rows import CHAT_ROWS, COMPLETION_ROWS
from gateway.api.parameters.responses_rows import RESPONSES_ROWS
from gateway.api.parameters.structured_output_rows import FORM_ROWS, TEXT_ROWS
from gateway.api.parameters.table import Row, look
from gateway.bodies import BENCH_PATH, ROUTES
from gateway.fake_cluster import FakeCluster, Loop
from gateway.tool_models import tool_folder

TABLE = {
    "/v1/chat/completions": [*CHAT_ROWS, *FORM_ROWS],
    "/v1/completions": [*COMPLETION_ROWS, *FORM_ROWS],
    "/v1/responses": [*RESPONSES_ROWS, *TEXT_ROWS],
    "/v1/messages": MESSAGES_ROWS,
    "/v1/messages/count_tokens": COUNT_ROWS,
    "/tokenize": TOKENIZE_ROWS,
    "/detokenize": DETOKENIZE_ROWS,
    BENCH_PATH: BENCH_ROWS,
}


@pytest.fixture(scope="module")
def surface_cluster(tmp_path_factory: pytest.TempPathFactory) -> FakeCluster:
    """Return a cluster whose model knows tools and reasoning."""
    cluster = FakeCluster(tool_folder(tmp_path_factory.mktemp("surface")), num_nodes=1)
    cluster.context_tokens = 4096
    return cluster


@pytest.fixture(scope="module")
def surface(surface_cluster: FakeCluster) -> Iterator[RunningGateway]:
    """Run it with a gateway."""
    loop = Loop()
    with loop.running(surface_cluster) as running:
        yield running
    loop.close()


@pytest.mark.parametrize(
    ("path", "row"),
    [
        pytest.param(path, row, id=f"{path} {row.field} {index}")
        for path, rows in TABLE.items()
        for index, row in enumerate(rows)
    ],
)
def test_the_effect_of_a_parameter_is_seen(
    surface: RunningGateway, surface_cluster: FakeCluster, path: str, row: Row
) -> None:
    """At the node that is asked, or in the answer."""
    seen = look(surface_cluster, surface, path, row)

    assert row.effect(seen), (seen.reply.status, seen.reply.data[:2000], seen.requests)


@pytest.mark.parametrize("path", TABLE)
def test_no_parameter_is_without_a_row(path: str) -> None:
    """Objects within a body included."""
    rows = {row.field for row in TABLE[path]}

    assert set(field_paths(ROUTES[path].body)) - rows == set()


def test_no_endpoint_is_without_a_table(tmp_path: Path) -> None:
    """Each that takes a body."""
    assert set(TABLE) == set(ROUTES)
