"""Operations on the page: nodes out of use and back, devices tested again, policies, fetches."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.cluster import Cluster, start_cluster
from tests.e2e.browser_page import NARROW, Watched, opened
from tests.registry import needs_registry, push, running_registry
from tests.waiting import wait_until
from tools.model_zoo import build

pytestmark = needs_registry


@dataclass(frozen=True)
class Operated:
    """A cluster whose only device is excluded, and what its nodes may fetch."""

    cluster: Cluster
    node: str
    model: str

    def node_state(self) -> str:
        (node,) = httpx.get(self.cluster.url + "/puna/v1/nodes", timeout=60).json()["nodes"]
        return str(node["state"])

    def wanted(self) -> dict[str, object]:
        answer = httpx.get(self.cluster.url + "/puna/v1/placements/demo", timeout=60).json()
        return dict(answer["constraints"])


@pytest.fixture(scope="module")
def operated(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    folder = tmp_path_factory.mktemp("operated")
    with running_registry(folder / "registry") as registry:
        pushed = push(registry, "team/dense", build("dense", folder).read_bytes())
        allowed = {"PUNA_REGISTRIES": registry.url, "PUNA_EXCLUDED_DEVICES": "cpu"}
        cluster = start_cluster(folder / "home", **allowed)
        try:
            cluster.runners()  # the inventory is shown
            (node,) = httpx.get(cluster.url + "/puna/v1/nodes", timeout=60).json()["nodes"]
            yield Operated(cluster, str(node["id"]), pushed.name)
        finally:
            cluster.stop()


@pytest.fixture
def page(browser: Browser, operated: Operated) -> Iterator[Watched]:
    with opened(browser, operated.cluster.url) as watched:
        watched.wait_live()
        yield watched
        watched.check()


def forgive_refusals(page: Watched) -> None:
    """The browser itself reports an answer that is no success; that there was one is what a test wants."""
    assert [text for text in page.problems if "Failed to load resource" not in text] == []
    page.problems.clear()


def policy_form(page: Watched) -> Locator:
    page.go("Models")
    page.page.get_by_role("button", name="Policy of demo:latest").click()
    form = page.page.get_by_role("dialog", name="Policy of demo:latest")
    expect(form).to_be_visible()
    return form


def test_a_node_is_drained_and_put_back_by_keyboard_alone(page: Watched, operated: Operated) -> None:
    button = page.page.get_by_role("button", name=f"Drain {operated.node}", exact=True)
    button.focus()
    page.page.keyboard.press("Enter")
    sure = page.page.get_by_role("dialog", name=f"Drain {operated.node}?")
    expect(sure).to_be_visible()
    page.photograph("drain-asked")
    page.page.keyboard.press("Escape")
    expect(sure).to_have_count(0)
    expect(button).to_be_focused()
    assert operated.node_state() != "drained"
    page.page.keyboard.press("Enter")
    expect(sure.get_by_label("Seconds that running requests get")).to_be_focused()
    page.page.keyboard.press("Enter")
    card = page.page.get_by_role("article", name=f"Node {operated.node}")
    expect(card.locator("header .badge")).to_have_text("drained")
    assert operated.node_state() == "drained"
    back = page.page.get_by_role("button", name=f"Undrain {operated.node}")
    expect(back).to_be_focused()
    page.page.keyboard.press("Enter")
    expect(button).to_be_visible()
    wait_until(lambda: operated.node_state() != "drained", deadline_s=15, what="the node is back")


def test_a_device_is_tested_again_and_what_is_still_wrong_is_said(page: Watched, operated: Operated) -> None:
    page.page.get_by_role("button", name=f"Test CPU of {operated.node} again").click()
    device = page.page.locator(".device").first
    expect(device.get_by_role("alert")).to_contain_text("Tested again, and still excluded", timeout=60_000)
    page.photograph("device-excluded")


def test_a_policy_is_set_refused_in_words_and_forgotten(page: Watched, operated: Operated) -> None:
    form = policy_form(page)
    form.get_by_label("Pinned").check()
    form.get_by_label("Replicas, at least").fill("3")
    form.get_by_label("Replicas, at most").fill("2")
    form.get_by_label(operated.node, exact=True).check()
    form.get_by_label("Kept when idle").fill("10m")
    form.get_by_role("button", name="Save").click()
    expect(form.get_by_role("alert")).to_contain_text("replicas_max")
    page.photograph("policy-light")
    forgive_refusals(page)
    assert operated.wanted() == {}
    form.get_by_label("Replicas, at most").fill("4")
    form.get_by_role("button", name="Save").click()
    expect(form).to_have_count(0)
    expect(page.page.get_by_role("button", name="Policy of demo:latest")).to_be_focused()
    wanted = operated.wanted()
    assert wanted == {
        "pinned": True, "replicas_min": 3, "replicas_max": 4, "nodes": [operated.node], "keep_alive": 600
    }  # fmt: skip
    form = policy_form(page)
    expect(form.get_by_label("Kept when idle")).to_have_value("600")
    expect(form.get_by_label(operated.node, exact=True)).to_be_checked()
    form.get_by_role("button", name="Forget all").click()
    sure = page.page.get_by_role("dialog", name="Forget the policy of demo:latest?")
    sure.get_by_role("button", name="Cancel").click()
    assert operated.wanted() == wanted
    form.get_by_role("button", name="Forget all").click()
    sure.get_by_role("button", name="Forget", exact=True).click()
    expect(form).to_have_count(0)
    assert operated.wanted() == {}


def test_a_model_is_fetched_from_its_registry(page: Watched, operated: Operated) -> None:
    page.go("Models")
    name = page.page.get_by_role("textbox", name="Fetch")
    name.fill(operated.model)
    page.page.get_by_label("Plain HTTP").check()
    page.page.get_by_role("button", name="Pull").click()
    fetched = page.page.get_by_role("list", name="Models that are fetched").get_by_role("listitem").first
    expect(fetched).to_contain_text(re.compile(r"Fetched, \d+(\.\d)? (Ki|Mi)B"))
    page.photograph("pulled")
    card = page.page.get_by_role("article", name=f"Model {operated.model}")
    expect(card).to_be_visible()
    page.page.evaluate("window.shifts.length = 0")  # a model that comes takes its place among the others
    name.fill(operated.model.replace("dense", "nothing"))
    name.press("Enter")
    refused = page.page.get_by_role("list", name="Models that are fetched").get_by_role("listitem").first
    expect(refused.get_by_role("alert")).to_contain_text("has no manifest of")
    page.page.get_by_role("button", name=f"Forget {operated.model}").click()
    expect(fetched).not_to_contain_text("Fetched,")
    assert page.page.get_by_role("list", name="Models that are fetched").get_by_role("listitem").count() == 1
    forgive_refusals(page)


def test_dialogs_fit_on_a_narrow_dark_screen(browser: Browser, operated: Operated) -> None:
    with opened(browser, operated.cluster.url, size=NARROW, dark=True) as page:
        page.wait_live()
        page.photograph("fleet-actions-narrow")
        form = policy_form(page)
        page.photograph("policy-narrow-dark")
        box = form.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= NARROW[0]
        width, room = page.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert width <= room
        form.get_by_role("button", name="Cancel").click()
        page.photograph("models-actions-narrow")
        page.check()
