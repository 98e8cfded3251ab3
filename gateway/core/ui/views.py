"""Views of the page: the part that a caller may see, and differences, so that a page receives only them. Pure.

A view is sections of items by id; the items are JSON values and are never changed once they are in a view.
"""

from collections.abc import Callable, Mapping
from typing import Any

_SHARES = ("holds", "lent_to")  # of a device: its contents and its borrower


Item = Mapping[str, object]
View = Mapping[str, Mapping[str, Item]]


def changes_between(before: View, after: View) -> dict[str, object]:
    """Compare views by section: `set`, the items that are new or differ, and `gone`, the ids that are no more."""
    changes: dict[str, object] = {}
    for section in before.keys() | after.keys():
        old, new = before.get(section, {}), after.get(section, {})
        different = {key: item for key, item in new.items() if old.get(key) != item}
        gone = sorted(old.keys() - new.keys())
        if different or gone:
            changes[section] = {
                **({"set": different} if different else {}),
                **({"gone": gone} if gone else {}),
            }
    return changes


def view_for(
    view: View,
    *,
    may_use: Callable[[str], bool],
    shown: Callable[[str], str],
    own_key_id: str | None,
    sees_all_keys: bool,
) -> dict[str, dict[str, Item]]:
    """Remove models that do not exist for the caller from the view, and the names of other callers.

    `shown` is a text as the caller may read it, `own_key_id` the caller's key; `sees_all_keys` is true for operators,
    and where there are no keys.
    """
    return {
        **{section: dict(items) for section, items in view.items()},
        "nodes": {key: _node_for(item, may_use) for key, item in view.get("nodes", {}).items()},
        "models": {key: _model_for(item, shown) for key, item in view.get("models", {}).items() if may_use(key)},
        "requests": {
            key: item
            for key, request in view.get("requests", {}).items()
            if (item := _request_for(request, may_use, own_key_id, sees_all_keys=sees_all_keys)) is not None
        },
    }


def _node_for(node: Item, may_use: Callable[[str], bool]) -> Item:
    devices, crash_rows = node.get("devices"), node.get("crash_rows", [])
    assert isinstance(devices, list)
    assert isinstance(crash_rows, list)
    return {
        **{name: value for name, value in node.items() if name != "runners"},
        "devices": [
            {**device, **{name: _shares_for(device[name], may_use) for name in _SHARES if name in device}}
            for device in devices
        ],
        "crash_rows": [row for row in crash_rows if may_use(row["model"])],
    }


def _shares_for(shares: list[Mapping[str, Any]], may_use: Callable[[str], bool]) -> list[Mapping[str, Any]]:
    return [one if may_use(one["model"]) else {**one, "model": None, "placement": None} for one in shares]


def _model_for(model: Item, shown: Callable[[str], str]) -> Item:
    """Hide the models that a load waits for, if they are others."""
    load = model.get("load")
    if not isinstance(load, Mapping) or not load["waits_for"]:
        return model
    return {**model, "load": {**load, "waits_for": shown(load["waits_for"])}}


def _request_for(
    request: Item, may_use: Callable[[str], bool], own_key_id: str | None, *, sees_all_keys: bool
) -> Item | None:
    model = request.get("model")
    if isinstance(model, str) and not may_use(model):
        return None
    if sees_all_keys or (own_key_id is not None and request.get("key") == own_key_id):
        return request
    # Unknown names come from clients, not from models.
    return {**request, "id": None, "key": None} if model is not None else None
