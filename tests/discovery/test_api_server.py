"""Single questions to the Kubernetes API, and the Secret that `baton authority secret` keeps there."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from cryptography import x509
from typer.testing import CliRunner

from baton.cli.app import make_app
from baton.discovery import api_server
from baton.discovery.api_server import ApiServer, own_api_server
from baton.errors import ConfigurationError, UnavailableError
from http_double import Answer, Request, serving


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """Return the folder of a pod's account."""
    (tmp_path / "token").write_text("mine\n")
    (tmp_path / "namespace").write_text("llm")
    return tmp_path


@pytest.mark.parametrize(
    ("host", "url"), [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
def test_a_pod_asks_its_own_cluster(account: Path, monkeypatch: pytest.MonkeyPatch, host: str, url: str) -> None:
    """By its account's token, believing the cluster's authority."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")

    assert own_api_server(account) == ApiServer(url, "mine", account / "ca.crt", "llm")


def test_who_is_no_pod_is_told_so(tmp_path: Path) -> None:
    """Neither variables nor files are there."""
    with pytest.raises(ConfigurationError, match="needs a pod with an account"):
        own_api_server(tmp_path)


@pytest.mark.parametrize(
    ("status", "said"), [(201, "ca.crt, ca.key, join.secret"), (409, "there already, and is kept")]
)
def test_an_authority_is_made_once(account: Path, monkeypatch: pytest.MonkeyPatch, status: int, said: str) -> None:
    """One that is there is left alone: what it has signed stays good."""
    asked: list[Request] = []

    def answer(request: Request) -> Answer:
        asked.append(request)
        return Answer(status, b"{}")

    with serving(answer) as url:
        monkeypatch.setattr(api_server, "own_api_server", lambda: ApiServer(url, "mine", namespace="llm"))
        done = CliRunner().invoke(make_app(), ["authority", "secret", "baton-authority"])
    (request,) = asked
    sent = json.loads(request.body)
    certificate = x509.load_pem_x509_certificate(base64.b64decode(sent["data"]["ca.crt"]))

    assert (done.exit_code, said in done.output) == (0, True)
    assert (request.method, request.path) == ("POST", "/api/v1/namespaces/llm/secrets")
    assert sent["metadata"] == {"name": "baton-authority"}
    assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_refusal_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which Kubernetes begins again."""
    with serving(lambda _: Answer(403, b"{}")) as url:
        monkeypatch.setattr(api_server, "own_api_server", lambda: ApiServer(url, "mine", namespace="llm"))
        done = CliRunner().invoke(make_app(), ["authority", "secret", "baton-authority"])

    assert isinstance(done.exception, UnavailableError)
    assert "answered 403" in str(done.exception)


def test_an_authority_that_cannot_be_read_is_an_api_that_cannot_be_reached(tmp_path: Path) -> None:
    """Its file may be replaced while a pod runs: who asks tries again, as where nobody answers."""
    broken = tmp_path / "ca.crt"
    broken.write_text("nothing")
    for authorities in (tmp_path / "absent", broken):
        with pytest.raises(UnavailableError, match="cannot be reached"):
            ApiServer("https://127.0.0.1:1", "mine", authorities, "llm").ask("/version")
