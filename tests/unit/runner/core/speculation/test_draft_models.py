"""Draft models: their vocabulary and their layout."""

from dataclasses import replace
from typing import Any

import pytest

from common.spec.layout import DeviceLayers, Layout
from runner.core.speculation.draft_models import (
    CATCH_UP_TOKENS,
    SIZE_DIFFERENCE_MAX,
    VocabularyFacts,
    draft_layout,
    vocabulary_difference,
)

TEXTS = [f"t{number}".encode() for number in range(300)]
FACTS = VocabularyFacts(kind=2, begin=1, end=None, texts=TEXTS)
LENT, FIRST, SECOND = DeviceLayers("a", 4, node_id="other"), DeviceLayers("b", 3), DeviceLayers("c", 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"texts": TEXTS[:-SIZE_DIFFERENCE_MAX]}, ""),
        ({"texts": TEXTS[: -SIZE_DIFFERENCE_MAX - 1]}, "171 tokens, not 300"),
        ({"texts": [b"other", *TEXTS[1:]]}, ""),  # the first ones are special, and named in many ways
        ({"texts": [*TEXTS[:5], b"other", *TEXTS[6:]]}, "token 5 is b'other', not b't5'"),
        ({"kind": 3}, "another type"),
        ({"begin": 2}, "begin token"),
        ({"begin": None}, "begin token"),
        ({"end": 7}, "end token"),
    ],
)
def test_ids_mean_the_same_or_the_difference_is_named(change: dict[str, Any], words: str) -> None:
    found = vocabulary_difference(FACTS, replace(FACTS, **change))
    assert words in found
    assert bool(found) == bool(words)


@pytest.mark.parametrize(
    ("devices", "places"), [((), []), ((FIRST, SECOND), ["b"]), ((LENT, FIRST, SECOND), ["b"]), ((LENT,), [])]
)
def test_it_is_whole_on_the_first_device_of_the_runners_node(
    devices: tuple[DeviceLayers, ...], places: list[str]
) -> None:
    target = Layout(
        devices=devices, context_tokens=4096, slots=4, batch_tokens=512, threads=3, projector_digest="p", pipeline=True
    )
    layout = draft_layout(target, trained_context_tokens=0)
    assert [device.device_id for device in layout.devices] == places
    assert all(device.layer_count > 1000 for device in layout.devices)
    assert (layout.context_tokens, layout.slots, layout.batch_tokens, layout.threads) == (4096, 4, CATCH_UP_TOKENS, 3)
    assert (layout.projector_digest, layout.pipeline) == ("", False)
    assert draft_layout(target, trained_context_tokens=1024).context_tokens == 1024
