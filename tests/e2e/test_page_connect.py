"""The page's view for other programs: texts with this gateway's address, and checks of the model."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from playwright.sync_api import Browser, Locator, expect

from cli.core.connect.client import Values, filled, output_tokens
from cli.core.connect.clients import CLIENTS
from tests.cluster import Cluster, start_cluster
from tests.e2e.browser_page import NARROW, Watched, opened
from tools.model_zoo import build
from tools.model_zoo.catalogue import recipe_of

AGENT = "agent"
TRAINED = 131072


@pytest.fixture(scope="module")
def served(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with the demo model and one that has tools and a long context."""
    home = tmp_path_factory.mktemp("connect") / "home"
    (home / "models").mkdir(parents=True)
    build(replace(recipe_of("dense"), name=AGENT, context_tokens=TRAINED), home / "models")
    running = start_cluster(home)
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


def view_of(page: Watched, *, client: str, model: str) -> Locator:
    page.go("Connect")
    view = page.page.get_by_role("tabpanel", name="Connect")
    view.locator("select").nth(0).select_option(label=client)
    view.locator("select").nth(1).select_option(label=model)
    return view


def test_the_demo_model_is_said_to_be_too_small(page: Watched) -> None:
    view = view_of(page, client="Claude Code", model="demo")
    expect(view).to_contain_text("demo was trained for 2,048 tokens, Claude Code needs 49,152: choose another model.")
    page.photograph("connect-too-small")


def test_a_context_can_be_made_large_enough(page: Watched, served: Cluster) -> None:
    view = view_of(page, client="Codex", model=AGENT)
    expect(view).to_contain_text("Requests get 1,024 tokens, Codex needs 32,768, better 65,536.")
    expect(view).to_contain_text(f"puna connect codex --model {AGENT} --fix")
    assert served.post("/puna/v1/load", {"model": AGENT, "options": {"num_ctx": 65536}}).status_code == 200
    view.locator("select").nth(0).select_option(label="Claude Code")
    expect(view).to_contain_text("Requests get 65,536 tokens.")
    page.photograph("connect")


@pytest.mark.parametrize("key", list(CLIENTS))
def test_the_texts_are_those_of_the_command(page: Watched, served: Cluster, key: str) -> None:
    client = CLIENTS[key]
    view = view_of(page, client=client.name, model="demo")
    values = Values(url=served.url, model="demo", context=2048, output=output_tokens(client, 2048))
    # Where the model is too small the largest context that it can have is written, which is the same number here.
    if client.context_min == 0:
        values = replace(values, context=1024, output=output_tokens(client, 1024))
    for setting in client.settings:
        text = filled(setting.text, values)
        if text.strip():
            expect(view.get_by_role("region", name=setting.title).locator("pre")).to_have_text(text.rstrip())


def test_a_text_is_copied_by_keyboard(browser: Browser, served: Cluster) -> None:
    with opened(browser, served.url, view="#connect?client=claude-code&model=demo:latest") as page:
        page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.wait_live()
        button = page.page.get_by_role("button", name="Copy ~/.claude/settings.json")
        button.focus()
        page.page.keyboard.press("Enter")
        expect(page.page.get_by_text("Copied ~/.claude/settings.json").first).to_be_visible()
        text = json.loads(page.page.evaluate("navigator.clipboard.readText()"))
        assert text["env"]["ANTHROPIC_BASE_URL"] == served.url
        assert text["env"]["ANTHROPIC_MODEL"] == "demo"
        page.check()


def test_a_narrow_page_does_not_scroll_sideways(browser: Browser, served: Cluster) -> None:
    with opened(browser, served.url, size=NARROW, view="#connect?client=claude-code") as page:
        page.wait_live()
        expect(page.page.get_by_role("region", name="~/.claude/settings.json")).to_be_visible()
        assert page.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        page.photograph("connect-narrow")
        page.check()
