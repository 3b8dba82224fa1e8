"""How the page /ui looks in a real Chromium, with few and many nodes, narrow and wide, light and dark, and by keyboard.

`make matrix` looks at all of it; otherwise a sample is looked at.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from gateway.api.ui.pictures import HOSTILE, MODEL, picture
from gateway.fake_cluster import FakeCluster, Loop

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_WAIT_MS = 60_000
_WIDTHS = {"phone": 360, "desktop": 1400}
_SAMPLE = {(5, "desktop", "light"), (16, "phone", "dark")}
_LOOKS = [
    look
    for look in ((nodes, width, scheme) for nodes in (1, 5, 16) for width in _WIDTHS for scheme in ("light", "dark"))
    if look in _SAMPLE or os.environ.get("BATON_MATRIX")
]

_SCRIPT = (Path(__file__).parent / "look.js").read_text()


@pytest.fixture(scope="module")
def page(model_dir: Path) -> Iterator[Page]:
    """Start a gateway, and a browser with one window for all looks; it must have no complaint."""
    path = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if path is None:
        pytest.skip("Chromium is not installed")
    loop, complaints = Loop(), []
    with loop.running(FakeCluster(model_dir)) as gateway, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(base_url=f"http://127.0.0.1:{gateway.http_port}")
        page.set_default_timeout(_WAIT_MS)
        expect.set_options(timeout=_WAIT_MS)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        yield page
        browser.close()
    loop.close()
    assert [each for each in complaints if "Failed to load resource" not in each] == []


def show(page: Page, state: Mapping[str, Any], *, width: str = "desktop", scheme: Any = "light") -> None:
    """Open the page anew with a state."""
    page.set_viewport_size({"width": _WIDTHS[width], "height": 900})
    page.emulate_media(color_scheme=scheme, reduced_motion="no-preference")
    tell(page, state)
    page.goto("/ui")
    expect(page.locator("#status")).to_contain_text("Baton 0.1.0")


def tell(page: Page, state: Mapping[str, Any] | None, **answer: Any) -> None:
    """Let the gateway answer with a state; without one, otherwise or not at all."""
    if state is not None:
        answer = {"body": json.dumps(state), "content_type": "application/json"}
    page.unroute("**/ui/state*")
    page.route("**/ui/state*", lambda route: route.fulfill(**answer) if answer else route.abort())


def _measure(page: Page, name: str) -> Any:
    """Return what a function of look.js finds on the page."""
    return page.evaluate(f"() => {{ {_SCRIPT}\nreturn {name}(); }}")


def test_a_line_flows_only_for_those_who_want_motion(page: Page) -> None:
    """It is thicker and coloured all the same."""
    show(page, picture(5))
    line = page.locator("#lines .busy")
    expect(line).to_have_count(1)
    for motion, animation in (("reduce", "none"), ("no-preference", "flow")):
        page.emulate_media(reduced_motion=motion)
        assert line.evaluate("each => getComputedStyle(each).animationName") == animation


@pytest.mark.parametrize(("num_nodes", "width", "scheme"), _LOOKS)
def test_everything_is_readable(page: Page, num_nodes: int, width: str, scheme: str) -> None:
    """No text lies over another or behind a box, is faint or tiny, and nothing leaves the window sideways."""
    show(page, picture(num_nodes), width=width, scheme=scheme)
    expect(page.locator(".node")).to_have_count(num_nodes)
    page.set_viewport_size({"width": _WIDTHS[width], "height": page.evaluate("document.documentElement.scrollHeight")})

    assert _measure(page, "overlaps") == []
    assert _measure(page, "unreadable") == []
    assert _measure(page, "tooWide") == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_bars_of_the_waterfall_are_as_long_as_its_numbers(page: Page) -> None:
    """On one scale: each begins where what comes before it ends, to a pixel; zoomed as well."""
    state = picture(5)
    show(page, state)
    terms = next(request["terms"] for request in state["requests"] if request["state"] == "done")
    seconds = {
        (pair["term"], column): pair[column] for pair in terms for column in ("estimated_seconds", "measured_seconds")
    }

    def check(bars: Any, *, is_cut: bool) -> None:
        by_name = {(bar["term"], bar["column"]): bar for bar in bars}
        for key, bar in by_name.items():
            if not (is_cut and key[0] in ("decode", "total")):
                assert bar["seconds"] == pytest.approx(seconds[key], abs=2.1 * bar["pixel"])
        for column in ("estimated_seconds", "measured_seconds"):
            waited = seconds["queue", column] + seconds["prefill", column]
            assert by_name["exposed", column]["start"] == pytest.approx(waited, abs=1.1 * bar["pixel"])
            here = waited + seconds["exposed", column]
            begun = here - seconds["transfer", column]
            assert by_name["transfer", column]["start"] == pytest.approx(begun, abs=1.1 * bar["pixel"])

    whole = _measure(page, "bars")
    assert len(whole) == 16
    check(whole, is_cut=False)
    expect(page.locator("#terms .prefill .estimated")).to_have_text("440 ms")
    expect(page.locator("#terms .prefill .measured")).to_have_text("520 ms")
    expect(page.locator("#terms .prefill .ratio")).to_have_text("× 1.18")  # noqa: RUF001 - as people write it
    page.click("#zoom")
    check(_measure(page, "bars"), is_cut=True)


def test_the_keyboard_reaches_all_that_can_be_used(page: Page) -> None:
    """In an order, visibly; arrow keys go through the requests, and the choice stays when the state comes again."""
    show(page, picture(16))
    reachable = _measure(page, "reachable")
    reached = []
    for _ in reachable:
        page.keyboard.press("Tab")
        name, is_visible = _measure(page, "focused")
        assert is_visible, name
        reached.append(name)

    assert sorted(reached) == sorted(reachable)
    page.locator("#requests tr.chosen").focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator("#requests tr.chosen")).to_have_attribute("data-key", "chatcmpl-1")
    expect(page.locator("#requests tr.chosen")).to_be_focused()
    expect(page.locator("#latest")).to_have_attribute("aria-pressed", "false")
    with page.expect_response("**/ui/state?request=chatcmpl-1"):
        pass
    expect(page.locator("#requests tr.chosen")).to_be_focused()


def test_a_glance_says_what_is_wrong(page: Page) -> None:
    """Which node drains, which is silent, which link is slow, what failed; nothing says it by colour alone."""
    show(page, picture(16))

    alerts = page.locator("#alerts li")
    expect(alerts.filter(has_text="decode-m3-ultra-2 is draining")).to_have_count(1)
    expect(alerts.filter(has_text="prefill-dgx-spark-3 takes no requests: no report for 7.2 s")).to_have_count(1)
    expect(alerts.filter(has_text="1 of the last 16 requests failed")).to_contain_text("no room for 131072 tokens")
    expect(page.locator("[data-key=decode-m3-ultra-1] .link.slow")).to_contain_text("slow: 110 MB/s")
    expect(page.locator("[data-key=decode-m3-ultra-0] .link.busy")).to_contain_text("KV of 1 request on its way")
    expect(page.locator("#summary")).to_contain_text("14 of 16")


def test_a_worker_stands_where_it_has_worked_of_late(page: Page) -> None:
    """Two that may play any part: the one that computed prompts for the other is drawn as the one that prefills."""
    show(page, picture(2, are_workers=True))

    expect(page.locator("#senders .node")).to_have_attribute("data-key", "prefill-dgx-spark-0")
    expect(page.locator("#receivers .node")).to_have_attribute("data-key", "decode-m3-ultra-0")
    expect(page.locator("#senders .device")).to_contain_text("any part · of late")
    expect(page.locator("#senders .device")).to_contain_text("62 TFLOP/s, 740 GB/s")
    tell(page, {**picture(2, are_workers=True), "requests": []})
    expect(page.locator("#receivers .node")).to_have_count(2)


def test_lines_are_drawn_from_side_to_side_and_over_no_text(page: Page) -> None:
    """Nodes of one side that send to each other have that in their lists."""
    state = picture(5)
    names = ("prefill-dgx-spark-0", "prefill-dgx-spark-1")
    between = {**state["links"][0], "from": names[0], "to": names[1]}
    show(page, {**state, "links": [*state["links"], between]})

    expect(page.locator("#senders .node")).to_have_count(2)
    expect(page.locator(f".node[data-key={names[1]}] .links > [data-key={names[0]}]")).to_have_count(1)
    expect(page.locator("#lines path").first).to_be_attached()
    keys = page.locator("#lines path").evaluate_all("paths => paths.map((path) => path.dataset.key)")
    assert " ".join(names) not in keys


def test_what_is_not_there_is_said_to_be_and_what_to_do(page: Page) -> None:
    """No node, a node that has left, a gateway that does not answer: with the last numbers, marked as old."""
    show(page, picture(0), width="phone")
    expect(page.locator("#no-node")).to_contain_text("baton serve decode")
    expect(page.locator("#no-request pre")).to_contain_text("/v1/chat/completions")

    tell(page, picture(5))
    expect(page.locator(".node")).to_have_count(5)
    expect(page.locator("#no-node")).to_be_hidden()
    tell(page, picture(4))
    expect(page.locator(".node[data-key=decode-m3-ultra-2]")).to_contain_text("left")
    tell(page, None)
    expect(page.locator("#alerts")).to_contain_text("does not answer")
    expect(page.locator("body")).to_have_class("stale")
    expect(page.locator(".node")).to_have_count(5)
    tell(page, None, status=503, body='{"error": {"message": "no router"}}')
    expect(page.locator("#alerts")).to_contain_text("no router The gateway lives")
    tell(page, picture(5))
    expect(page.locator("body")).not_to_have_class("stale")
    expect(page.locator("#alerts")).not_to_contain_text("no router")


def test_models_machines_and_the_plan_are_told_and_names_are_no_markup(page: Page) -> None:
    """How far each is, why it failed, what a machine holds; what cannot be done has no button."""
    show(page, picture(5))
    cards = {
        name: page.locator(".model", has_text=name) for name in (HOSTILE, "org/fetched", "org/stored", "org/failed")
    }

    expect(cards[HOSTILE]).to_contain_text("● serving")
    expect(page.locator(".model", has_text=MODEL)).to_contain_text("3 of at most 256 in work")
    expect(cards["org/fetched"].locator(".badge")).to_have_text("fetching 42 %")
    expect(cards["org/stored"]).to_contain_text("on demand: a request loads it")
    expect(cards["org/failed"].locator(".problem")).to_have_text("mac: its worker ended with status 2: no such dtype")
    buttons = {name: card.locator("button:visible").all_inner_texts() for name, card in cards.items()}
    assert buttons == {
        HOSTILE: ["Unload"],
        "org/fetched": ["Unload"],
        "org/stored": ["Load", "Unload"],
        "org/failed": ["Try again", "Forget"],
    }
    expect(page.locator("#machines li").first).to_contain_text(
        f"mac: 61 GB free for models · {HOSTILE} ● serving, holds"
    )
    expect(page.locator("#plan")).to_contain_text(f"{HOSTILE}: mac (decode), spark (prefill)")
    expect(page.locator("img")).to_have_count(0)


def test_a_model_is_loaded_once_somebody_has_agreed_to_what_it_would_come_to(page: Page) -> None:
    """The first click asks and changes nothing; what the gateway refuses is said."""
    show(page, picture(5))
    sent: list[Any] = []

    def answer(route: Any) -> None:
        sent.append(json.loads(route.request.post_data))
        forecast = [f"{HOSTILE} would go to mac"] if sent[-1].get("dry_run") else []
        route.fulfill(json={"model": sent[-1]["model"], "state": "absent", "cause": "", "forecast": forecast})

    page.route("**/v1/models/load", answer)
    page.fill("#source", "org/new@v1")
    page.click("#load")
    expect(page.locator("#forecast li")).to_have_text(f"{HOSTILE} would go to mac")
    wanted = {"model": "org/new", "source": "org/new@v1", "on_demand": False}
    assert sent == [{**wanted, "dry_run": True}]
    page.click("#agree")
    expect(page.locator("#models-note")).to_have_text("Load org/new: asked for.")
    assert sent[1:] == [wanted]
    page.unroute("**/v1/models/load")
    refusal = {"error": {"message": "source: expected a folder"}}
    page.route("**/v1/models/load", lambda route: route.fulfill(status=400, json=refusal))
    page.locator(".model", has_text="org/stored").get_by_role("button", name="Load", exact=True).click()
    expect(page.locator("#models-note")).to_have_text("source: expected a folder")
    expect(page.locator("#forecast")).to_be_hidden()


def test_a_code_is_made_on_demand_and_says_how_long_it_holds(page: Page) -> None:
    """With the command to type there."""
    show(page, picture(1))
    soon = (datetime.now(UTC) + timedelta(minutes=15)).isoformat()
    code = {
        "code": "7-able-baker-candle",
        "address": "192.168.1.5:8013",
        "expires_at": soon,
        "advice": "plug in a cable",
    }
    page.route("**/ui/invite", lambda route: route.fulfill(json=code))
    page.click("#invite")

    expect(page.locator("#invitation pre")).to_have_text("baton join 7-able-baker-candle")
    expect(page.locator("#join-address")).to_contain_text("--address 192.168.1.5:8013. plug in a cable")
    expect(page.locator("#join-note")).to_have_text(re.compile("for 14 min [0-9]+ s more"))


def test_every_placement_of_a_request_is_priced_term_by_term(page: Page) -> None:
    """The cheapest first; what cannot be says why."""
    show(page, picture(5))
    terms = ("queue", "prefill", "transfer", "exposed", "pull", "restore", "time_to_first_token", "start", "step")
    estimate = {f"{term}_seconds": 0.25 for term in (*terms, "decode", "imposed", "total")}
    previews = [
        {"nodes": ["spark", "mac"], "estimate": estimate, "error": None},
        {"nodes": ["mac"], "estimate": {**estimate, "total_seconds": 1.0}, "error": None},
        {"nodes": ["spark"], "estimate": dict.fromkeys(estimate, 0), "error": "its pool is too small"},
    ]
    page.route("**/instance/previews?*", lambda route: route.fulfill(json={"previews": previews}))
    page.click("#price button")
    rows = page.locator("#placements tbody tr")

    expect(rows).to_have_count(3)
    expect(rows.nth(0)).to_contain_text("mac")
    expect(rows.nth(0).locator("td").last).to_have_text("chosen")
    expect(rows.nth(0).locator("td").nth(5)).to_have_text(re.compile("750"))  # exposed, pull and restore
    expect(rows.nth(1).locator("td").last).to_have_text(re.compile("750"))
    expect(rows.nth(2).locator("td").last).to_have_text("its pool is too small")
    assert _measure(page, "tooWide") == []


def test_the_api_is_described_for_people(page: Page) -> None:
    """Every path and object of the document is on the page, and every link leads somewhere."""
    document = page.request.get("/openapi.json").json()
    page.goto("/docs")
    expect(page.locator("#operations tr").last).to_be_visible()
    paths = [text.split()[1] for text in page.locator("#operations code").all_inner_texts()]
    ids = page.evaluate("[...document.querySelectorAll('h3')].map((each) => each.id)")
    links = page.evaluate("[...document.querySelectorAll('a[href^=\"#\"]')].map((each) => each.hash.slice(1))")

    assert set(paths) == set(document["paths"])
    assert set(ids) == set(document["components"]["schemas"])
    assert set(links) <= set(ids)
