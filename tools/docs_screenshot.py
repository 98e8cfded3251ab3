"""The screenshots of the README: `python -m tools.docs_screenshot http://127.0.0.1:11434` photographs a running page.

What they show is real: a cluster that `puna up` started, with the demo model under some load.
"""

import sys
import threading
from pathlib import Path

import httpx
from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"
CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
SIZE = {"width": 1200, "height": 400}
QUESTIONS = ("What is Puna?", "What is a runner?", "What is a slot?", "How do I add a node?")


def main(url: str) -> int:
    """Ask something, and photograph the fleet in both colours."""
    ended = threading.Event()
    askers = [threading.Thread(target=_ask, args=(url, question, ended), daemon=True) for question in QUESTIONS]
    for asker in askers:
        asker.start()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
            for name in ("light", "dark"):
                page = browser.new_page(viewport=SIZE, color_scheme=name)  # type: ignore[arg-type]
                page.goto(f"{url}/ui")
                page.get_by_role("tab", name="Fleet").click()
                page.wait_for_timeout(4000)  # rates are of the last seconds
                page.screenshot(path=FOLDER / f"page-{name}.png")
            browser.close()
    finally:
        ended.set()
    return 0


def _ask(url: str, question: str, ended: threading.Event) -> None:
    body = {"model": "demo", "messages": [{"role": "user", "content": question}], "stream": False}
    while not ended.wait(0.2):
        httpx.post(f"{url}/api/chat", json=body, timeout=60)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
