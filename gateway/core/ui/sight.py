"""What of the page's view one caller may see. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from gateway.core.ui.changes import Item, View

_SHARES = ("holds", "lent_to")  # of a device: what lies there, and whom it serves


def view_for(
    view: View,
    *,
    may_use: Callable[[str], bool],
    shown: Callable[[str], str],
    own_key_id: str | None,
    sees_everybody: bool,
) -> dict[str, dict[str, Item]]:
    """The view without models that do not exist for the caller, and without the names of other callers.

    `shown` is a text as the caller may read it, `own_key_id` the caller's key; `sees_everybody` is true for operators,
    and where nobody has a key.
    """
    return {
        **{section: dict(items) for section, items in view.items()},
        "nodes": {key: _node_for(item, may_use) for key, item in view.get("nodes", {}).items()},
        "models": {key: _model_for(item, shown) for key, item in view.get("models", {}).items() if may_use(key)},
        "requests": {
            key: item
            for key, request in view.get("requests", {}).items()
            if (item := _request_for(request, may_use, own_key_id, sees_everybody=sees_everybody)) is not None
        },
    }


def _node_for(node: Item, may_use: Callable[[str], bool]) -> Item:
    devices = node.get("devices")
    assert isinstance(devices, list)
    return {
        **{name: value for name, value in node.items() if name != "runners"},
        "devices": [
            {**device, **{name: _shares_for(device[name], may_use) for name in _SHARES if name in device}}
            for device in devices
        ],
    }


def _shares_for(shares: list[Mapping[str, Any]], may_use: Callable[[str], bool]) -> list[Mapping[str, Any]]:
    return [one if may_use(one["model"]) else {**one, "model": None, "placement": None} for one in shares]


def _model_for(model: Item, shown: Callable[[str], str]) -> Item:
    """What its load waits for may be other models."""
    load = model.get("load")
    if not isinstance(load, Mapping) or not load["waits_for"]:
        return model
    return {**model, "load": {**load, "waits_for": shown(load["waits_for"])}}


def _request_for(
    request: Item, may_use: Callable[[str], bool], own_key_id: str | None, *, sees_everybody: bool
) -> Item | None:
    model = request.get("model")
    if isinstance(model, str) and not may_use(model):
        return None
    if sees_everybody or (own_key_id is not None and request.get("key") == own_key_id):
        return request
    # Unknown models are what somebody wrote, not what there is.
    return {**request, "id": None, "key": None} if model is not None else None
