"""Bill of materials of the installed packages, as CycloneDX JSON: `python -m tools.sbom LOCK > FILE`.

The image is built without a network where it must be, so this needs nothing but the interpreter that it describes.
"""

import importlib.metadata
import json
import re
import sys
from pathlib import Path
from typing import Any

LOCKED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)
OWN = "puna"


def main() -> int:
    """Print the bill. 1: a package is installed that the lock does not name in this version."""
    locked = {(_key(name), version) for name, version in LOCKED.findall(Path(sys.argv[1]).read_text(encoding="utf-8"))}
    installed = sorted(importlib.metadata.distributions(), key=lambda one: _key(one.name))
    found = {(_key(one.name), one.version) for one in installed if _key(one.name) != OWN}
    strangers = [f"{name}=={version}" for name, version in sorted(found - locked)]
    if strangers:
        print(f"not in {sys.argv[1]}: {', '.join(strangers)}", file=sys.stderr)
        return 1
    components = [_component(one) for one in installed]
    (own,) = [one for one in components if one["name"] == OWN]
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**own, "type": "application"}},
        "components": [one for one in components if one is not own],
    }
    json.dump(bill, sys.stdout, indent=1)
    return 0


def _component(package: importlib.metadata.Distribution) -> dict[str, Any]:
    name = _key(package.name)
    component = {"type": "library", "name": name, "version": package.version}
    component["purl"] = component["bom-ref"] = f"pkg:pypi/{name}@{package.version}"
    if "License-Expression" in package.metadata:
        return {**component, "licenses": [{"expression": package.metadata["License-Expression"]}]}
    return component


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main())
