"""The screenshots of the README: `python -m tools.docs_screenshot` starts a fleet, loads models, and photographs it.

Hosts are processes of this machine, each with one device whose limit is real (tests/limited_device.py); models have
random weights. Needs Chromium (`make deps-system`) and 6 GiB of free memory; takes about two minutes.
"""

import io
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from PIL import Image
from playwright.sync_api import expect

from tests.e2e.browser_page import Watched, chromium, missing_browser, opened
from tests.e2e.namespaces import Machines, running_hosts
from tools.model_zoo import build, shape
from tools.model_zoo.recipe import WeightType

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"
SIZE = (1200, 1200)
MARGIN = 20  # below the last node
COLOURS_MAX = 255  # of a picture: a third of the bytes, and no difference that can be seen
NODES = ("gpu-1", "gpu-2", "gpu-3", "gpu-4")
DEVICE_MIB = 1024
# By their contexts: one needs the devices of two nodes, one fills a device, one leaves room on its own.
CONTEXTS = {"reviewer": 98304, "coder": 49152, "assistant": 16384}


def main() -> int:
    """Photograph a fleet in both colour schemes."""
    if reason := missing_browser():
        print(f"no screenshots: {reason}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder, _loaded(Path(folder)) as cluster, chromium() as browser:
        for scheme in ("light", "dark"):
            with opened(browser, cluster.url, size=SIZE, dark=scheme == "dark") as watched:
                _photograph(watched, FOLDER / f"page-{scheme}.png")
    return 0


def _photograph(watched: Watched, file: Path) -> None:
    """Take a picture that ends below the last node, once the page shows every model."""
    watched.wait_live()
    watched.go("Fleet")
    for name in CONTEXTS:
        expect(watched.page.locator(".legend .who", has_text=name).first).to_be_visible()
    nodes = watched.page.locator(".nodes").bounding_box()
    assert nodes is not None, "the nodes are visible"
    shot = watched.page.screenshot()
    with Image.open(io.BytesIO(shot)) as image:
        # The page keeps the same margin on both sides; to the right it also keeps room for a scroll bar.
        part = image.crop((0, 0, round(2 * nodes["x"] + nodes["width"]), round(nodes["y"] + nodes["height"] + MARGIN)))
        part.convert("RGB").quantize(COLOURS_MAX, dither=Image.Dither.NONE).save(file, optimize=True)


@contextmanager
def _loaded(folder: Path) -> Iterator[Machines]:
    """Run the fleet with every model loaded."""
    models = folder / "models"
    models.mkdir()
    base = replace(shape("57m"), weights=WeightType.F16, vocabulary_tokens=1024, kv_heads=8, context_tokens=1 << 17)
    for number, name in enumerate(CONTEXTS):
        build(replace(base, name=name, seed=5 + number), models)
    with running_hosts(folder, models, names=NODES, device_mib=DEVICE_MIB) as cluster:
        for name, context_tokens in CONTEXTS.items():
            cluster.answer(name, num_ctx=context_tokens, require_gpu=True).raise_for_status()
        yield cluster


if __name__ == "__main__":
    sys.exit(main())
