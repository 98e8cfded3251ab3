"""Models that turn a text into one vector or score, and the sizes they run with. Pure."""

from collections.abc import Mapping
from dataclasses import replace

from common.spec.layout import Layout
from runner.core.model.description import EMBEDDING_ARCHITECTURES, PROJECTOR_ARCHITECTURE, Pooling, Value

ENGINE = "pooled"
# Inputs that share a call keep a device busy when they are short; a sequence without a cache costs next to nothing.
PARALLEL_INPUTS = 64


def pooling_of(metadata: Mapping[str, Value]) -> Pooling | None:
    """Return the pooling of a model from its GGUF keys; None for one that generates.

    An encoder cannot generate, whatever its keys say. Without a key it pools by the mean, which is what most of them
    were trained with; `Pooling.NONE` is its file's own word for "one vector for each token".
    """
    architecture = metadata.get("general.architecture")
    if architecture == PROJECTOR_ARCHITECTURE:
        return None
    value = metadata.get(f"{architecture}.pooling_type")
    pooling = Pooling(value) if isinstance(value, int) and value in list(Pooling) else None
    if architecture in EMBEDDING_ARCHITECTURES:
        return Pooling.MEAN if pooling is None else pooling
    return pooling or None


def pooled_layout(layout: Layout, *, recurrent: bool) -> Layout:
    """Return a resolved layout with the sizes of a pooled model.

    Batch = context: one input always fits one call, which the engine demands. `slots` are the inputs that share a
    call; their tokens together are at most one context.

    Args:
        layout: resolved, as for a model that generates.
        recurrent: each sequence has a state of its own, so their number is not raised.
    """
    inputs = layout.slots if recurrent else max(layout.slots, PARALLEL_INPUTS)
    return replace(
        layout,
        slots=min(inputs, layout.context_tokens),
        batch_tokens=layout.context_tokens,
        rollback_tokens=0,
        engine=ENGINE,
    )
