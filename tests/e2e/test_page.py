"""The page against a real cluster: every view, by mouse and by keyboard, in light, dark and narrow."""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.cluster import Cluster, start_cluster
from tests.e2e.browser_page import NARROW, Watched, opened
from tests.waiting import wait_until

VIEWS = ("Fleet", "Models", "Why", "Live", "Connect", "Playground")
THOUGHT = "What is 17 times 24?"


@pytest.fixture(scope="module")
def served(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster for this file alone; started only where there is a browser."""
    running = start_cluster(tmp_path_factory.mktemp("page") / "home")
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def page(browser: Browser, served: Cluster) -> Iterator[Watched]:
    with opened(browser, served.url) as watched:
        watched.wait_live()
        yield watched
        watched.check()


def unload(cluster: Cluster) -> None:
    cluster.post("/puna/v1/unload", {"model": "demo"})
    wait_until(
        lambda: not httpx.get(cluster.url + "/puna/v1/placements", timeout=60).json()["placements"],
        deadline_s=30,
        what="nothing is loaded",
    )


def load(cluster: Cluster) -> None:
    assert cluster.post("/puna/v1/load", {"model": "demo"}).status_code == 200


def size_in_bytes(text: str) -> float:
    number, unit = text.split()
    return float(number) * float(1024 ** ["B", "KiB", "MiB", "GiB", "TiB"].index(unit))


def send(page: Watched, text: str) -> None:
    page.page.get_by_label("Message").fill(text)
    page.page.get_by_role("button", name="Send").click()


def test_a_browser_is_shown_the_page_and_a_client_is_not(served: Cluster) -> None:
    shown = httpx.get(served.url + "/", headers={"accept": "text/html,*/*;q=0.8"}, timeout=60)
    assert (shown.status_code, shown.headers["location"]) == (302, "/ui")
    plain = httpx.get(served.url + "/", timeout=60)
    assert (plain.status_code, plain.text) == (200, "Ollama is running")


def test_files_come_with_a_policy_and_are_asked_for_again(served: Cluster) -> None:
    first = httpx.get(served.url + "/ui/app.js", timeout=60)
    assert first.headers["content-type"].startswith("text/javascript")
    policy = first.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    again = httpx.get(served.url + "/ui/app.js", headers={"if-none-match": first.headers["etag"]}, timeout=60)
    assert (again.status_code, again.content) == (304, b"")
    for path in ("/ui/nothing.js", "/ui/../app.py", "/ui/%2e%2e/app.py"):
        assert httpx.get(served.url + path, timeout=60).status_code == 404


@pytest.mark.parametrize("lost", ["app.js", "store.js", "base.css"])
def test_a_page_that_lost_a_part_on_the_way_is_loaded_again(browser: Browser, served: Cluster, lost: str) -> None:
    with contextlib.closing(browser.new_context()) as context:
        page = context.new_page()
        loads = list[Page]()

        def loaded(one: Page) -> None:
            loads.append(one)

        page.on("load", loaded)
        page.route(f"**/ui/{lost}", lambda route: route.continue_() if loads else route.abort())
        with page.expect_event("load", lambda _: len(loads) >= 2):
            Watched(page, served.url).open(f"{served.url}/ui")
        expect(page.locator("#link-text")).to_have_text("Connected")


def test_the_fleet_shows_devices_with_their_real_bytes(page: Watched, served: Cluster) -> None:
    load(served)
    (node,) = httpx.get(served.url + "/puna/v1/nodes", timeout=60).json()["nodes"]
    device = next(one for one in node["devices"] if one["class"] == "cpu")
    card = page.page.get_by_role("article", name=f"Node {node['id']}")
    expect(card).to_contain_text("ready")
    shown = card.locator(".free").first.inner_text()
    free, total = re.fullmatch(r"(.+) free of (.+)", shown).groups()  # type: ignore[union-attr]  # else the test fails
    assert size_in_bytes(total) == pytest.approx(device["total_bytes"], rel=0.01)
    assert 0 < size_in_bytes(free) < size_in_bytes(total)
    expect(card.locator(".source").first).to_contain_text(re.compile(r"measured · (meminfo|cgroup) · \d"))
    expect(card.locator(".legend").first).to_contain_text("demo:latest")
    (held,) = next(
        one["holds"]
        for one in httpx.get(served.url + "/puna/v1/nodes", timeout=60).json()["nodes"][0]["devices"]
        if one["id"] == device["id"]
    )
    title = card.locator(".membar .cache title").first.text_content() or ""
    assert size_in_bytes(title.partition(": ")[2]) == pytest.approx(held["cache_bytes"], rel=0.01)
    page.photograph("fleet-light")


def test_a_model_is_loaded_pinned_and_unloaded(page: Watched, served: Cluster) -> None:
    unload(served)
    page.go("Models")
    card = page.page.get_by_role("article", name="Model demo:latest")
    badge = card.locator("header .badge")
    expect(badge).to_have_text("not loaded")
    card.get_by_role("button", name="Load demo:latest").click()
    expect(badge).to_have_text("ready")
    (placed,) = httpx.get(served.url + "/puna/v1/placements", timeout=60).json()["placements"]
    expect(card).to_contain_text(f"0 of {placed['slots_total']}")
    pin = card.get_by_role("button", name="Pin demo:latest")
    pin.click()
    expect(pin).to_have_attribute("aria-pressed", "true")
    expect(card).to_contain_text("Pinned")
    page.photograph("models-light")
    wanted = httpx.get(served.url + "/puna/v1/placements/demo", timeout=60).json()
    assert wanted["constraints"] == {"pinned": True}
    pin.click()
    expect(pin).to_have_attribute("aria-pressed", "false")
    card.get_by_role("button", name="Unload demo:latest").click()
    expect(badge).to_have_text("not loaded")
    expect(card.get_by_role("button", name="Load demo:latest")).to_be_visible()


def test_why_draws_every_candidate_and_asks_again_with_other_sizes(page: Watched) -> None:
    page.go("Why")
    view = page.page.get_by_role("tabpanel", name="Why")
    view.get_by_label("Model").select_option("demo:latest")
    chosen = view.locator(".candidate.chosen")
    expect(chosen).to_be_visible()
    expect(chosen.locator(".needbar")).to_have_attribute("aria-label", re.compile(r"CPU: needs .+ of .+"))
    expect(chosen).to_contain_text(re.compile(r"There: .+ = free .+ − reserve .+ − promised .+"))
    page.photograph("why-light")
    view.get_by_label("num_ctx").fill("512")
    view.get_by_label("slots").fill("3")
    view.get_by_role("button", name="Ask").click()
    expect(view.locator(".decision")).to_contain_text("3 slots of 512 tokens")


def test_what_does_not_fit_says_by_how_much(browser: Browser, tmp_path: Path) -> None:
    cap = {"PUNA_DEVICE_MAX_BYTES": "cpu=170MiB", "PUNA_DEVICE_OVERHEAD": "cpu=0"}
    cluster = start_cluster(tmp_path / "home", **cap)
    try:
        with opened(browser, cluster.url, view="#why?model=demo:latest") as page:
            page.wait_live()
            view = page.page.get_by_role("tabpanel", name="Why")
            view.get_by_label("num_ctx").fill("2048")
            view.get_by_role("button", name="Ask").click()
            expect(view.locator(".decision .badge")).to_have_text("insufficient memory")
            expect(view.locator(".needbar .beyond").first).to_be_attached()
            expect(view.locator(".decision")).to_contain_text("requires more system memory")
            expect(view.locator(".short").first).to_contain_text("short")
            page.photograph("why-short")
            page.check()
    finally:
        cluster.stop()


def test_an_answer_streams_with_its_thinking_and_the_chances_of_its_tokens(page: Watched) -> None:
    page.go("Playground")
    view = page.page.get_by_role("tabpanel", name="Playground")
    view.get_by_label("Temperature").fill("0")
    send(page, THOUGHT)
    answer = view.locator(".turn.answer").last
    expect(answer.locator(".foot").first).to_contain_text("tokens/s")
    expect(answer.locator(".text")).to_have_text("17 times 24 is 408.")
    expect(answer.locator("summary")).to_have_text("Thinking")
    answer.locator("summary").click()
    expect(answer.locator(".thinking .tokens")).to_contain_text("340")
    token = answer.locator(".text .token").nth(1)
    token.hover()
    box = page.page.get_by_role("tooltip")
    expect(box).to_contain_text(re.compile(r"\d %"))
    assert box.locator("li").count() == 5
    assert box.locator("li.chosen").count() == 1
    page.photograph("playground-light")
    page.page.keyboard.press("Escape")
    expect(box).to_be_hidden()


def test_the_same_question_can_be_copied_for_a_shell(page: Watched) -> None:
    page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.go("Playground")
    view = page.page.get_by_role("tabpanel", name="Playground")
    view.get_by_label("Seed").fill("7")
    view.get_by_label("num_ctx").fill("512")
    send(page, "What is Puna?")
    expect(view.locator(".foot").first).to_contain_text("tokens/s")
    page.page.get_by_role("button", name="Copy as curl").click()
    expect(page.page.get_by_text("Copied as curl").first).to_be_visible()
    copied: str = page.page.evaluate("navigator.clipboard.readText()")
    body = json.loads(re.search(r"-d '(.+)'$", copied, re.DOTALL).group(1))  # type: ignore[union-attr]  # else it fails
    assert (body["seed"], body["options"], body["messages"][0]["content"]) == (7, {"num_ctx": 512}, "What is Puna?")
    answer = httpx.post(page.url + "/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200
    page.page.get_by_role("button", name="Copy as Python").click()
    expect(page.page.get_by_text("Copied as Python").first).to_be_visible()
    compile(page.page.evaluate("navigator.clipboard.readText()"), "snippet", "exec")


def test_dark_colours_follow_the_system_until_somebody_chooses(browser: Browser, served: Cluster) -> None:
    with opened(browser, served.url, dark=True) as page:
        page.wait_live()
        root = page.page.locator("html")
        expect(root).to_have_attribute("data-theme", "dark")
        for view in VIEWS:
            page.go(view)
            page.photograph(f"{view.lower()}-dark")
        page.page.get_by_role("button", name="Dark colours").click()
        expect(root).to_have_attribute("data-theme", "light")
        page.page.reload()
        expect(root).to_have_attribute("data-theme", "light")
        page.check()


def test_everything_is_reached_with_the_keyboard_alone(page: Watched) -> None:
    press = page.page.keyboard.press
    press("Tab")
    expect(page.page.get_by_role("link", name="Skip to the content")).to_be_focused()
    press("Tab")
    expect(page.page.get_by_role("tab", name="Fleet")).to_be_focused()
    for view in (*VIEWS[1:], VIEWS[0]):
        press("ArrowRight")
        expect(page.page.get_by_role("tab", name=view, exact=True)).to_be_focused()
        expect(page.page.get_by_role("tabpanel", name=view)).to_be_visible()
    press("End")
    expect(page.page.get_by_role("tabpanel", name="Playground")).to_be_visible()
    page.page.get_by_label("Message").focus()
    page.page.keyboard.type(THOUGHT)
    press("Enter")
    answer = page.page.locator(".turn.answer").last
    expect(answer.locator(".foot").first).to_contain_text("tokens/s")
    expect(page.page.get_by_label("Message")).to_be_focused()
    press("Shift+Tab")
    expect(answer.locator(".text .token").first).to_be_focused()
    expect(page.page.get_by_role("tooltip")).to_be_visible()
    press("ArrowRight")
    expect(answer.locator(".text .token").nth(1)).to_be_focused()
    outline = page.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_it_works_on_a_narrow_screen(browser: Browser, served: Cluster) -> None:
    load(served)
    with opened(browser, served.url, size=NARROW) as page:
        page.wait_live()
        for view in VIEWS:
            page.go(view)
            if view == "Why":
                page.page.get_by_role("tabpanel", name="Why").get_by_label("Model").select_option("demo:latest")
                expect(page.page.locator(".candidate").first).to_be_visible()
            width, room = page.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert width <= room, view
            page.photograph(f"{view.lower()}-narrow")
        page.check()


@pytest.mark.parametrize("width", [780, 850])
def test_the_source_of_figures_does_not_lie_over_them_in_a_narrow_card(
    browser: Browser, served: Cluster, width: int
) -> None:
    load(served)
    with opened(browser, served.url, size=(width, 800)) as page:
        page.wait_live()
        device = page.page.locator(".device").first
        source, legend = (device.locator(part).bounding_box() for part in (".source", ".legend"))
        assert source is not None
        assert legend is not None
        assert source["y"] + source["height"] <= legend["y"]
        page.check()


def test_landmarks_and_headings_tell_where_one_is(page: Watched) -> None:
    snapshot = page.page.locator("body").aria_snapshot()
    for role in ("banner", "main", "tablist", 'tab "Fleet" [selected]', 'tabpanel "Fleet"', 'heading "Puna"'):
        assert role in snapshot, role
    assert page.page.evaluate("document.documentElement.lang") == "en"
