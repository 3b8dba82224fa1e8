"""What every kind of client asks first: models, probes, the description of the API, and paths that nobody serves."""

from __future__ import annotations

import re
from collections.abc import Iterator

import anthropic
import pytest

from baton.gateway.server import RunningGateway
from gateway.fake_cluster import MODEL
from gateway.rest import ask

ANTHROPIC = {"anthropic-version": "2023-06-01"}


@pytest.fixture
def client(gateway: RunningGateway) -> Iterator[anthropic.Anthropic]:
    """Return Anthropic's official client."""
    url = f"http://127.0.0.1:{gateway.http_port}"
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=20) as client:
        yield client


def test_anthropics_client_lists_models_in_its_own_shape(client: anthropic.Anthropic) -> None:
    """All on one page; each with a name to show, and when it was made."""
    (model,) = client.models.list(limit=1)

    assert (model.id, model.type, model.display_name) == (MODEL, "model", MODEL)
    assert model.created_at.year >= 2025
    assert client.models.retrieve(MODEL) == model


def test_a_model_that_is_not_there_is_told_in_the_callers_words(
    client: anthropic.Anthropic, gateway: RunningGateway
) -> None:
    """At the same path."""
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.models.retrieve("nope")

    assert isinstance(caught.value.body, dict)
    assert caught.value.body["error"]["type"] == "not_found_error"
    assert ask(gateway, "/v1/models/nope").error == (404, "model", "model_not_found")


def test_a_path_that_nobody_serves_is_refused_in_the_callers_words(gateway: RunningGateway) -> None:
    """Anthropic's clients say who they are in every request."""
    anthropics = ask(gateway, "/v1/messages/batches", {}, headers=ANTHROPIC)
    openais = ask(gateway, "/v1/embeddings", {})

    assert (anthropics.status, anthropics.body["type"]) == (404, "error")
    assert anthropics.body["error"]["type"] == "not_found_error"
    assert openais.error == (404, None, "unknown_url")
    assert "/v1/chat/completions" in openais.body["error"]["message"]


@pytest.mark.parametrize(
    ("path", "meant"), [("/chat/completions", "/v1/chat/completions"), ("/v1/v1/models", "/v1/models")]
)
def test_a_base_url_that_is_slightly_wrong_gets_a_hint(gateway: RunningGateway, path: str, meant: str) -> None:
    """Without /v1, or with it twice."""
    reply = ask(gateway, path, {})

    assert reply.status == 404
    assert f"{meant} is served" in reply.body["error"]["message"]


def test_probes_of_others_are_answered(gateway: RunningGateway) -> None:
    """SageMaker's, by both methods."""
    assert ask(gateway, "/ping").body == ask(gateway, "/ping", method="POST").body == {"status": "ok"}


def test_the_api_is_described_for_people(gateway: RunningGateway) -> None:
    """By a page whose script reads the document, which nobody needs a key for; nothing of it comes from elsewhere."""
    page = ask(gateway, "/docs")
    wanted = re.findall(r'(?:href|src)="([^"]+)"', page.data.decode())

    assert page.headers["content-type"].startswith("text/html")
    assert {"/docs.js", "/docs.css", "/openapi.json"} <= set(wanted)
    assert [ask(gateway, path).status for path in wanted] == [200] * len(wanted)
