"""The page while things happen: loads, answers that are stopped, gateways that go, and keys that may do little.

The engine of these clusters is the timed one: loads and answers take as long as the tests need to look at them.
"""

import json
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.cluster import Cluster, start_cluster
from tests.e2e.browser_page import Watched, opened
from tests.e2e.test_keys import puna_keys
from tests.waiting import wait_until
from tools.model_zoo import build

# Answers that never end by themselves.
SLOW_ENGINE = {
    "PUNA_ENGINE": "fake",
    "PUNA_ENGINE_OPTIONS": json.dumps({"load_s": 4.0, "tokens_per_s": 20.0}),
}
# Loads that can be looked at for long enough where a browser takes seconds for a page.
LONG_LOADS = {"PUNA_ENGINE_OPTIONS": json.dumps({"load_s": 10.0, "tokens_per_s": 20.0})}


@pytest.fixture(scope="module")
def slow(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose loads take 10 s and whose answers go on until somebody stops them."""
    running = start_cluster(tmp_path_factory.mktemp("slow") / "home", **(SLOW_ENGINE | LONG_LOADS))
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def page(browser: Browser, slow: Cluster) -> Iterator[Watched]:
    with opened(browser, slow.url) as watched:
        watched.wait_live()
        yield watched
        watched.check()


@dataclass
class Locked:
    """With keys: `reader` may look, `asker` may ask and look, `blind` only ask, `full` everything."""

    cluster: Cluster
    full: str
    reader: str
    asker: str
    blind: str


@pytest.fixture(scope="module")
def locked(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    home = tmp_path_factory.mktemp("lockedpage")
    file = home / "keys.json"

    def made(owner: str, *scopes: str) -> str:
        words = [word for scope in scopes for word in ("--scope", scope)]
        key: str = puna_keys(file, "create", "--owner", owner, *words)["key"]
        return key

    everything = ("infer", "embed", "models:read", "models:write", "metrics", "admin:cluster", "admin:keys")
    full = made("ada", *everything)
    reader, asker, blind = made("bob", "models:read"), made("cy", "infer", "models:read"), made("dan", "infer")
    cluster = start_cluster(home / "home", PUNA_API_KEYS_FILE=str(file), PUNA_API_KEY=full, **SLOW_ENGINE)
    try:
        yield Locked(cluster, full, reader, asker, blind)
    finally:
        cluster.stop()


def unload(cluster: Cluster) -> None:
    cluster.post("/puna/v1/unload", {"model": "demo"})
    wait_until(
        lambda: not httpx.get(cluster.url + "/puna/v1/placements", timeout=60).json()["placements"],
        deadline_s=30,
        what="nothing is loaded",
    )


def use_key(page: Watched, key: str) -> None:
    dialog = page.page.get_by_role("dialog", name="API key")
    # Without a key it opens by itself, before the page says so.
    expect(page.page.locator("#link")).not_to_have_attribute("data-state", "connecting")
    if not dialog.is_visible():
        page.page.get_by_role("button", name=re.compile("^Key")).click()
    dialog.get_by_label("Key").fill(key)
    dialog.get_by_role("button", name="Use this key").click()


def test_a_load_shows_how_far_it_is_and_how_long_it_will_take(page: Watched, slow: Cluster) -> None:
    unload(slow)
    page.go("Models")
    card = page.page.get_by_role("article", name="Model demo:latest")
    card.get_by_role("button", name="Load demo:latest").click()
    expect(card.locator("header .badge")).to_have_text("loading")
    expect(card.locator(".doing")).to_have_text(re.compile(r"Loading on .+: \d+ %, about \d+ s left"))
    page.photograph("models-loading")
    meter = card.get_by_role("progressbar")
    before = float(meter.get_attribute("value") or 0)
    page.page.wait_for_function("before => document.querySelector('progress').value > before", arg=before)
    expect(card.locator("header .badge")).to_have_text("ready")
    expect(card.locator(".doing")).to_have_text("Idle")


def test_a_load_that_waits_says_for_what(browser: Browser, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "models").mkdir(parents=True)
    build("dense", home / "models").rename(home / "models" / "tiny.gguf")
    cap = {"PUNA_DEVICE_MAX_BYTES": "cpu=220MiB", "PUNA_DEVICE_OVERHEAD": "cpu=0"}  # enough for one of both
    engine = SLOW_ENGINE | {"PUNA_ENGINE_OPTIONS": json.dumps({"tokens_per_s": 2.0})}
    cluster = start_cluster(home, **cap, **engine)
    try:
        busy = {"model": "demo", "prompt": "What is Puna?"}
        with (
            opened(browser, cluster.url, view="#models") as page,
            httpx.stream("POST", cluster.url + "/api/generate", json=busy, timeout=60) as answer,
        ):
            lines = answer.iter_lines()  # the answer ends with it
            next(lines)
            page.wait_live()
            card = page.page.get_by_role("article", name="Model tiny:latest")
            card.get_by_role("button", name="Load tiny:latest").click()
            expect(card.locator(".doing")).to_have_text("Waits for memory that demo:latest holds", timeout=60_000)
            expect(card.locator("header .badge")).to_have_text("asked for")
            expect(page.page.get_by_role("article", name="Model demo:latest")).to_contain_text("1 request answered now")
            page.photograph("models-waiting")
            page.check()
    finally:
        cluster.stop()


def test_an_answer_can_be_stopped_and_its_slot_is_free_again(page: Watched, slow: Cluster) -> None:
    page.go("Playground")
    page.page.get_by_label("Message").fill("Tell me everything.")
    page.page.get_by_role("button", name="Send").click()
    expect(page.page.locator(".turn.answer .token").nth(5)).to_be_attached()
    page.photograph("playground-answering")
    page.page.get_by_role("button", name="Stop").click()
    expect(page.page.get_by_text("stopped", exact=True)).to_be_visible()
    expect(page.page.get_by_role("button", name="Send")).to_be_visible()
    wait_until(lambda: slow.slots_busy() == 0, deadline_s=20, what="the slot is free")


def test_escape_stops_an_answer_too(page: Watched, slow: Cluster) -> None:
    page.go("Playground")
    page.page.get_by_label("Message").fill("Tell me everything.")
    page.page.keyboard.press("Enter")
    expect(page.page.locator(".turn.answer .token").first).to_be_attached()
    page.page.keyboard.press("Escape")
    expect(page.page.get_by_text("stopped", exact=True)).to_be_visible()
    wait_until(lambda: slow.slots_busy() == 0, deadline_s=20, what="the slot is free")


def test_requests_in_progress_are_listed_without_what_they_say(browser: Browser, slow: Cluster) -> None:
    secret = "zebra crossing"
    body = {"model": "demo", "messages": [{"role": "user", "content": secret}], "stream": True}
    with (
        opened(browser, slow.url, view="#live") as page,
        httpx.stream("POST", slow.url + "/v1/chat/completions", json=body, timeout=60) as answer,
    ):
        page.wait_live()
        row = page.page.locator("tbody tr").filter(has_text=answer.headers["x-request-id"])
        expect(row).to_contain_text("answering")
        expect(row).to_contain_text("demo:latest")
        tokens = row.locator("td").nth(5)
        first = int(tokens.inner_text())
        page.page.wait_for_function(
            "first => Number(document.querySelectorAll('tbody td')[5].textContent) > first", arg=first
        )
        chart = page.page.get_by_role("img", name=re.compile("^Tokens: now [1-9]"))
        expect(chart).to_be_visible()
        assert secret not in page.page.content()
        page.photograph("live-light")
        page.check()


def test_the_page_says_that_it_is_stale_and_comes_back(browser: Browser, slow: Cluster) -> None:
    with opened(browser, slow.url) as page:
        page.wait_live()
        os.kill(slow.pid_of("gateway"), signal.SIGKILL)
        expect(page.page.locator("#link")).to_have_attribute("data-state", "stale")
        expect(page.page.locator("#link-text")).to_have_text(re.compile(r"Stale · \d+ s"))
        expect(page.page.locator(".node")).to_be_visible()  # what was known stays
        page.photograph("fleet-stale")
        expect(page.page.locator("#link")).to_have_attribute("data-state", "live", timeout=60_000)
        assert page.shifts() == [], page.shifts()
        # The browser itself reports connections that were refused; nothing else went wrong.
        assert [text for text in page.problems if "Failed to load resource" not in text] == []


def test_a_key_is_asked_for_and_kept_in_the_tab_only(browser: Browser, locked: Locked) -> None:
    with opened(browser, locked.cluster.url) as page:
        dialog = page.page.get_by_role("dialog", name="API key")
        expect(dialog).to_be_visible()
        page.photograph("key-asked")
        use_key(page, "puna_wrong")
        expect(dialog.get_by_role("alert")).to_have_text("Incorrect API key provided")
        use_key(page, locked.full)
        expect(dialog).to_be_hidden()
        page.wait_live()
        assert locked.full in page.page.evaluate("JSON.stringify(sessionStorage)")
        assert locked.full not in page.page.evaluate("JSON.stringify(localStorage) + document.cookie")
        assert locked.full not in page.page.content()
        page.go("Models")
        expect(page.page.get_by_role("button", name="Pin demo:latest")).to_be_visible()
        expect(page.page.get_by_role("button", name="Pull")).to_be_visible()
        assert page.foreign == []
        assert page.nameless() == []


def test_what_a_key_may_not_do_is_not_offered(browser: Browser, locked: Locked) -> None:
    with opened(browser, locked.cluster.url) as page:
        use_key(page, locked.reader)
        page.wait_live()
        page.go("Models")
        card = page.page.get_by_role("article", name="Model demo:latest")
        expect(card.get_by_role("button", name="Why demo")).to_be_visible()
        for action in ("Load", "Unload", "Pin", "Policy of", "Try"):
            assert card.get_by_role("button", name=f"{action} demo").count() == 0, action
        assert page.page.get_by_role("button", name="Pull").count() == 0
        page.go("Fleet")
        assert page.page.get_by_role("button", name="Drain").count() == 0
        page.go("Playground")
        expect(page.page.get_by_role("button", name="Send")).to_be_disabled()
        expect(page.page.get_by_text("lacks the scope infer")).to_be_visible()
        use_key(page, locked.asker)
        expect(page.page.get_by_role("button", name="Send")).to_be_enabled()
        assert page.foreign == []


def test_who_may_only_ask_writes_the_name_of_the_model(browser: Browser, locked: Locked) -> None:
    with opened(browser, locked.cluster.url, view="#playground") as page:
        use_key(page, locked.blind)
        expect(page.page.locator("#link")).to_have_attribute("data-state", "refused")
        page.page.get_by_role("textbox", name="Model").fill("demo")
        page.page.get_by_label("Message").fill("Tell me everything.")
        page.page.get_by_role("button", name="Send").click()
        expect(page.page.locator(".turn.answer .token").first).to_be_attached()
        page.page.get_by_role("button", name="Stop").click()
        expect(page.page.get_by_text("stopped", exact=True)).to_be_visible()
        page.go("Fleet")
        fleet = page.page.get_by_role("tabpanel", name="Fleet")
        expect(fleet.get_by_text("lacks the scope models:read")).to_be_visible()
        assert page.nameless() == []


def test_requests_of_other_keys_have_no_names(browser: Browser, locked: Locked) -> None:
    body = {"model": "demo", "messages": [{"role": "user", "content": "Tell me everything."}], "stream": True}
    headers = {"authorization": f"Bearer {locked.full}"}
    url = locked.cluster.url + "/v1/chat/completions"
    with opened(browser, locked.cluster.url, view="#live") as page:
        use_key(page, locked.reader)
        page.wait_live()
        with httpx.stream("POST", url, json=body, headers=headers, timeout=60) as answer:
            row = page.page.locator("tbody tr")
            expect(row).to_contain_text("another key's")
            assert answer.headers["x-request-id"] not in page.page.content()
            use_key(page, locked.full)
            expect(row).to_contain_text(answer.headers["x-request-id"])


def test_a_stream_ends_when_its_key_is_revoked(locked: Locked) -> None:
    file = locked.cluster.home.parent / "keys.json"
    key = puna_keys(file, "create", "--owner", "eve", "--scope", "models:read")["key"]
    headers = {"authorization": f"Bearer {key}"}
    whoami = locked.cluster.url + "/puna/v1/whoami"
    # Asked before the wait, whose many wrong keys are answered 429 in the end.
    assert httpx.get(whoami, timeout=60).status_code == 401
    wait_until(
        lambda: httpx.get(whoami, headers=headers, timeout=60).status_code == 200,
        deadline_s=20,
        what="the key is known",
    )
    assert httpx.get(whoami, headers=headers, timeout=60).json()["scopes"] == ["models:read"]
    with httpx.stream("GET", locked.cluster.url + "/puna/v1/events", headers=headers, timeout=60) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "event: snapshot"
        puna_keys(file, "revoke", key.split("_")[1])
        assert "event: end" in lines
