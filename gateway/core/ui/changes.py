"""Differences between two views, so that a page receives only them. Pure.

A view is sections of items by id; the items are JSON values and are never changed once they are in a view.
"""

from collections.abc import Mapping

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
