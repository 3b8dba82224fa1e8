"""The page /ui in a real Chromium, against a cluster of mock nodes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from checkpoints import checkpoint
from system.cluster import Cluster
from system.plan import MODEL_NAME
from system.rest import ask

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_WAIT_MS = 120_000
_SETTINGS = {
    "router": {"prefill_policy": "remote"},
    "prefill": {"mock_hardware": "dgx-spark", "mock_shape": "llama-3.1-8b"},
    "decode": {"mock_hardware": "m3-ultra", "mock_shape": "llama-3.1-8b"},
}


class Opened(NamedTuple):
    """The page of a cluster."""

    page: Page
    cluster: Cluster
    complaints: list[str]
    """What the browser has put on its console."""


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Open the page; whatever a test does there, the browser must have no complaint."""
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        pytest.skip("Chromium is not installed")
    with (
        Cluster(checkpoint("llama"), prefill=("mock",), decode=("mock", "mock"), settings=_SETTINGS) as cluster,
        sync_playwright() as playwright,
    ):
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = chromium.new_page()
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.set_default_timeout(_WAIT_MS)
        expect.set_options(timeout=_WAIT_MS)
        host, port = cluster.http_address
        page.goto(f"http://{host}:{port}/ui")
        yield Opened(page, cluster, complaints)
        chromium.close()
    assert complaints == []


def test_a_person_sees_nodes_talks_to_the_model_and_looks_into_a_request(opened: Opened) -> None:
    """Nodes with their links; an answer that streams; and the layers of a request, computed and on their way."""
    page = opened.page
    expect(page.locator("#cluster .node")).to_have_count(3)
    expect(page.locator("#cluster .link")).to_have_count(4)  # from each other node that may hold a prefix

    page.fill("#question", "Hello?")
    page.press("#question", "Enter")
    expect(page.locator("#messages .assistant")).not_to_have_text("")
    page.click("#send")  # stops: the mock's answer would fill its context
    expect(page.locator("#send")).to_have_text("Send")

    body = {"model": MODEL_NAME, "prompt": [9] * 40, "max_tokens": 4, "ignore_eos": True, "temperature": 0}
    reply = ask(opened.cluster, "/v1/completions", json.dumps(body).encode())
    assert reply.status == 200
    row = page.locator("#requests tbody tr.done", has_text="40").first
    row.click()
    expect(page.locator("#frames .bar.transfer").first).to_be_attached()
    expect(page.locator("#waterfall-note")).to_contain_text("40 prompt tokens by prefill-0")
    expect(page.locator("#waterfall-note")).to_contain_text("% hidden")
    expect(page.locator("#terms tbody tr", has_text="prefill").locator(".measured").first).to_contain_text("s")


def test_a_gateway_that_is_gone_is_said_to_be(opened: Opened) -> None:
    """And the page goes on when it is back."""
    page = opened.page
    expect(page.locator("#status")).to_contain_text("3 nodes")

    opened.cluster.kill("gateway")
    expect(page.locator("#status.bad")).to_be_visible()
    expect(page.locator("#alerts")).to_contain_text("does not answer")
    opened.cluster.restart("gateway")
    expect(page.locator("#status")).to_contain_text("3 nodes")
    opened.complaints[:] = [each for each in opened.complaints if "net::ERR_" not in each]
