"""Draft models: layout beside a target, and whether both have one vocabulary. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from common.spec.layout import Layout

# Inputs of one call: what a draft model reads of a text before its target's next call.
CATCH_UP_TOKENS = 128
_EVERY_LAYER = 2**16
# Source: SPEC_VOCAB_MAX_SIZE_DIFFERENCE and SPEC_VOCAB_CHECK_START_TOKEN_ID in llama.cpp's common/speculative.cpp.
SIZE_DIFFERENCE_MAX = 128
FIRST_COMPARED_TOKEN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyFacts:
    """Values that make token ids mean the same. `begin` and `end` are None where no such token is added to a text."""

    kind: int
    begin: int | None
    end: int | None
    texts: Sequence[bytes]


def vocabulary_difference(target: VocabularyFacts, draft: VocabularyFacts) -> str:
    """Return the reason why ids of the draft are not those of the target; empty: they are."""
    if target.kind != draft.kind:
        return f"its tokenizer is of another type ({draft.kind}, not {target.kind})"
    if target.begin != draft.begin:
        return f"its begin token differs ({draft.begin}, not {target.begin})"
    if target.end != draft.end:
        return f"its end token differs ({draft.end}, not {target.end})"
    if abs(len(target.texts) - len(draft.texts)) > SIZE_DIFFERENCE_MAX:
        return f"it has {len(draft.texts)} tokens, not {len(target.texts)}"
    pairs = zip(target.texts[FIRST_COMPARED_TOKEN:], draft.texts[FIRST_COMPARED_TOKEN:], strict=False)
    for token_id, (wanted, found) in enumerate(pairs, start=FIRST_COMPARED_TOKEN):
        if wanted != found:
            return f"its token {token_id} is {found!r}, not {wanted!r}"
    return ""


def draft_layout(target: Layout, *, trained_context_tokens: int) -> Layout:
    """Return a layout with all layers on the target's first device of this machine; without one, in host RAM.

    Args:
        target: resolved layout.
        trained_context_tokens: of the draft model; 0: not known.
    """
    local = next((device for device in target.devices if not device.node_id), None)
    return Layout(
        devices=() if local is None else (replace(local, layer_count=_EVERY_LAYER),),
        context_tokens=min(target.context_tokens, trained_context_tokens or target.context_tokens),
        slots=target.slots,
        batch_tokens=min(target.batch_tokens, CATCH_UP_TOKENS),
        threads=target.threads,
        use_mmap=target.use_mmap,
    )
