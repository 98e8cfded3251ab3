"""The page in a real Chromium: opened, watched for errors, foreign hosts and layout shifts, and photographed."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response, expect, sync_playwright
from playwright.sync_api import Error as PlaywrightError

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# For what a page does at once, and for what a whole cluster does before the page can show it.
EXPECTED_MS = 30_000
# Chromium drops what it loads when an interface of the machine comes or goes.
NETWORK_CHANGED = "net::ERR_NETWORK_CHANGED"
LOADS_MAX = 20
SCREENSHOTS = Path(__file__).resolve().parents[2] / "build" / "artifacts" / "page"
WIDE = (1280, 800)
NARROW = (360, 780)
# Every shift that no key press or click explains, as browsers count them for users. A word of an answer that has no
# room left on its line goes to the next one as more of it is written: that is how text grows.
_WATCH_SHIFTS = """
window.shifts = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) {
    const sources = entry.sources.filter(
      ({ node }) => !(node?.closest ? node : node?.parentElement)?.closest(".token"),
    );
    if (!entry.hadRecentInput && (sources.length || !entry.sources.length)) {
      window.shifts.push({
        value: entry.value,
        moved: sources.map(({ node, previousRect: before, currentRect: after }) => [
          (node?.outerHTML ?? node?.parentElement?.outerHTML ?? "gone").slice(0, 160),
          [before.x, before.y, before.width, before.height],
          [after.x, after.y, after.width, after.height],
        ]),
      });
    }
  }
}).observe({ type: "layout-shift", buffered: true });
"""
# A control without a name is a riddle to who cannot see it.
_NAMELESS = """
() => [...document.querySelectorAll("button, input, select, textarea, [role=tab], [role=img], [tabindex='0'], summary")]
  .filter((element) => element.checkVisibility({ visibilityProperty: true }))
  .filter((element) => {
    const ids = (element.getAttribute("aria-labelledby") ?? "").split(" ");
    const labelled = ids.map((id) => document.getElementById(id));
    const names = [
      element.getAttribute("aria-label"), element.ariaLabel, element.title,
      ...[...(element.labels ?? [])].map((label) => label.textContent),
      ...labelled.map((label) => label?.textContent),
      ["INPUT", "SELECT", "TEXTAREA"].includes(element.tagName) ? "" : element.textContent,
    ];
    return !names.some((name) => name?.trim());
  })
  .map((element) => element.outerHTML.slice(0, 120))
"""


def missing_browser() -> str:
    """Describe the reason why pages cannot be tested on this machine; empty: they can."""
    return "" if CHROMIUM.exists() else f"{CHROMIUM} is missing (make deps-system)"


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; skips where the machine has none."""
    if reason := missing_browser():
        pytest.skip(reason)
    expect.set_options(timeout=EXPECTED_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@dataclass(slots=True)
class Watched:
    """A page, and what went wrong on it."""

    page: Page
    url: str
    problems: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)  # because other tests changed interfaces of this machine

    def open(self, url: str) -> None:
        """Load the page, again where Chromium dropped a part of it."""
        for _ in range(LOADS_MAX):
            self.dropped.clear()
            try:
                self.page.goto(url)
            except PlaywrightError as error:
                self.dropped.append(str(error))
            if not self.dropped:
                return
            assert all(NETWORK_CHANGED in text for text in self.dropped), self.dropped
        raise AssertionError(f"dropped {LOADS_MAX} times: {self.dropped}")

    def go(self, view: str) -> None:
        """To one of the views, by its tab."""
        self.page.get_by_role("tab", name=view, exact=True).click()
        expect(self.page.get_by_role("tabpanel", name=view)).to_be_visible()

    def wait_live(self) -> None:
        """The stream runs, and the fleet has been heard of."""
        expect(self.page.locator("#link")).to_have_attribute("data-state", "live")
        self.page.locator(".node").first.wait_for(state="attached")

    def photograph(self, name: str) -> None:
        """Keep a picture for who wants to look."""
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png")

    def shifts(self) -> list[dict[str, object]]:
        """Everything that moved without anybody having done something."""
        found: list[dict[str, object]] = self.page.evaluate("window.shifts")
        return found

    def nameless(self) -> list[str]:
        """Visible controls without an accessible name."""
        found: list[str] = self.page.evaluate(_NAMELESS)
        return found

    def check(self) -> None:
        """Nothing went wrong, nothing was asked of anybody else, nothing moved, everything has a name."""
        assert self.problems == []
        assert self.foreign == []
        assert self.shifts() == [], self.shifts()
        assert self.nameless() == []


@contextlib.contextmanager
def opened(
    browser: Browser, url: str, *, size: tuple[int, int] = WIDE, dark: bool = False, view: str = ""
) -> Iterator[Watched]:
    """The page of a gateway in a fresh profile."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if dark else "light"
    )
    try:
        page = context.new_page()
        watched = Watched(page, url)
        _watch(watched)
        page.add_init_script(_WATCH_SHIFTS)
        watched.open(f"{url}/ui{view}")
        yield watched
    finally:
        context.close()


def _watch(watched: Watched) -> None:
    own = urlsplit(watched.url).netloc

    def on_request(request: Request) -> None:
        watched.requested.append(urlsplit(request.url).path)
        if urlsplit(request.url).netloc != own:
            watched.foreign.append(request.url)

    def on_response(response: Response) -> None:
        if response.status >= 500:
            watched.problems.append(f"{response.status} {response.url}")

    def on_message(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            (watched.dropped if NETWORK_CHANGED in message.text else watched.problems).append(message.text)

    watched.page.on("request", on_request)
    watched.page.on("response", on_response)
    watched.page.on("pageerror", lambda error: watched.problems.append(str(error)))
    watched.page.on("console", on_message)
