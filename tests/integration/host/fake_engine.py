"""`python fake_engine.py SCENARIO MODE …`: an engine build with cards that crash, hang or appear twice.

Stands in for `python -m runner` in one mode, probe; every other mode is the real one. The scenario is a JSON file, read
anew by every process: {"backends": […], "devices": [Device as JSON, …], "kills_listing": [ids], "hangs_listing": [ids],
"kills_backend": name, "checks": {id: how}}.
"""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from runner.gpu_memory import known_cards

LIMIT = "CUDA_VISIBLE_DEVICES"
NO_VULKAN = "GGML_DISABLE_VULKAN"


def main() -> None:
    path, mode, *arguments = sys.argv[1:]
    scenario = json.loads(Path(path).read_text())
    with Path(path).with_suffix(".calls").open("a") as calls:
        calls.write(
            json.dumps(
                {
                    "mode": mode,
                    "arguments": arguments,
                    "limit": os.environ.get(LIMIT),
                    "extra": os.environ.get("SOME_WORKAROUND"),
                }
            )
            + "\n"
        )
    if mode != "probe":
        os.execv(sys.executable, [sys.executable, "-m", "runner", mode, *arguments])
    seen = _visible_slice([device for device in scenario["devices"] if _is_seen(device)])
    if scenario.get("drivers_name_cards"):
        seen = [{**device, "id": _named(device)} for device in seen]
    if any(device["backend"] == scenario.get("kills_backend") for device in seen):
        _die("the driver met something that it did not expect")
    if "--check" in arguments:
        _check(scenario, seen, arguments[arguments.index("--check") + 1], arguments[arguments.index("--backend") + 1])
    elif any(device["id"] in scenario.get("kills_listing", []) for device in seen):
        _die("no kernel image is available for execution on the device")
    elif any(device["id"] in scenario.get("hangs_listing", []) for device in seen):
        threading.Event().wait()
    else:
        _answer(scenario, seen)


def _is_seen(device: dict[str, Any]) -> bool:
    limit = os.environ.get(LIMIT)
    if device["backend"] == "Vulkan":
        return NO_VULKAN not in os.environ
    return device["backend"] != "CUDA" or limit is None or device["id"] in limit.split(",")


def _visible_slice(seen: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave one slice and no other card of CUDA, as a process of CUDA sees them; it is the process's first device."""
    slices = [device["id"] for device in seen if device["id"].startswith("MIG-")]
    left = [device for device in seen if not slices or device["backend"] != "CUDA" or device["id"] == slices[0]]
    return [{**device, "name": "CUDA0"} if device["id"] in slices else device for device in left]


def _named(device: dict[str, Any]) -> str:
    """Return the id of a card as the real engine does: by its driver's or its host's word, else by its address."""
    pci_id = str(device.get("pci_id", device["id"]))
    return next((card.device_id or card.uuid for card in known_cards() if card.pci_id == pci_id), "") or pci_id


def _check(scenario: dict[str, Any], seen: list[dict[str, Any]], device_id: str, backend: str) -> None:
    checks = scenario.get("checks", {})
    match checks.get(f"{backend} {device_id}", checks.get(device_id, "passes")):
        case "crashes":
            _die("CUDA error: no kernel image is available for execution on the device")
        case "hangs":
            threading.Event().wait()
        case "lists nothing":
            _answer(scenario, [])
        case _:
            [device] = [one for one in seen if one["id"] == device_id and one["backend"] == backend]
            _answer(scenario, [{**device, "speed_bytes_s": "1000"}])


def _answer(scenario: dict[str, Any], devices: list[dict[str, Any]]) -> None:
    print(json.dumps({"engine_build": "fake 1", "backends": scenario["backends"], "devices": devices}))


def _die(last_words: str) -> None:
    print(last_words, file=sys.stderr, flush=True)
    os.abort()


if __name__ == "__main__":
    main()
