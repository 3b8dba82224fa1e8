"""The pages of docs/clients say what `make clients` runs: the programs, and the packages that they need."""

from __future__ import annotations

import re

import pytest

from tests.clients.pages import ClientPage
from tests.clients.plan import ROOT, Client, all_clients

_MAX_LINES = 49
_GRPC = {client.name: client for client in all_clients().values() if client.page}


@pytest.fixture(params=_GRPC)
def client(request: pytest.FixtureRequest) -> Client:
    """Return each client that has a page."""
    return _GRPC[request.param]


@pytest.fixture
def page(client: Client) -> ClientPage:
    """Return its page."""
    assert client.page is not None
    return ClientPage.read(client.page)


def test_a_page_shows_the_program_that_is_run(client: Client, page: ClientPage) -> None:
    """As it lies beside the checks; one screen long."""
    assert client.page is not None
    program = next(path for path in client.script.parent.iterdir() if path.stem.lower() == "client")
    fences = re.findall(r"^```\w+\n(.*?)^```$", client.page.read_text(), re.MULTILINE | re.DOTALL)
    beside = [path for path in client.script.parent.iterdir() if path.name in ("Cargo.toml", "build.rs")]
    hidden = [path.name for path in beside if not any(path.read_text().startswith(fence) for fence in fences)]

    assert page.source == program.read_text()
    assert hidden == [], "of Cargo.toml the part before what the checks need is shown"
    assert len(page.source.splitlines()) <= _MAX_LINES


def test_a_page_installs_what_is_run(client: Client, page: ClientPage) -> None:
    """Under the names that clients.toml pins; checks may need more."""
    pinned = {re.split(r"(?<=.)[@=]", name)[0] for name in client.packages}

    assert set(page.packages) <= pinned
    assert client.runtime != "debian" or set(page.packages) == pinned


def test_every_page_is_of_a_client() -> None:
    """And short enough to be read at once."""
    pages = set((ROOT / "docs" / "clients").glob("*.md"))

    assert pages == {client.page for client in _GRPC.values()}
    assert [path.name for path in pages if len(path.read_text().splitlines()) > 100] == []
