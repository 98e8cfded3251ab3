"""The engines that obey one contract, and in what they may differ."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common.spec.layout import FlashAttention, Layout
from runner.core.model.description import Pooling
from runner.core.model.model_files import ModelFiles
from runner.engine.batched.engine import BatchedEngine
from runner.engine.batched.loop import BatchedOptions
from runner.engine.contract.engine import Engine
from runner.engine.pooled.engine import PooledLlamaEngine
from tests.engines.fake import FakeEngine
from tests.engines.fake_options import FakeOptions
from tests.engines.reference import ReferenceEngine

CONTEXT_TOKENS = 128
BATCH_TOKENS = 32
PROMPT = "The weather is cold in the morning."


def layout(*, slots: int = 2, context_tokens: int = CONTEXT_TOKENS) -> Layout:
    # Kernels that fuse attention round in another way, and the reference has none.
    return Layout(
        slots=slots,
        context_tokens=context_tokens,
        batch_tokens=BATCH_TOKENS,
        threads=1,
        flash_attention=FlashAttention.OFF,
    )


def no_file(directory: Path) -> ModelFiles:
    """Return files of which none exists, enough for a fake engine."""
    return ModelFiles(model=directory / "none.gguf")


def reference(path: Path, layout: Layout) -> Engine:
    return ReferenceEngine(ModelFiles(model=path), layout)


def batched(path: Path, layout: Layout) -> Engine:
    return BatchedEngine(ModelFiles(model=path), layout, BatchedOptions(verify=True))


def fake(path: Path, layout: Layout) -> Engine:
    # Without a step's time an answer may be over before anybody could cancel it.
    return FakeEngine(ModelFiles(model=path), layout, FakeOptions(step_s=0.001))


def pooled(path: Path, layout: Layout) -> Engine:
    return PooledLlamaEngine(ModelFiles(model=path), layout, Pooling.MEAN)


@dataclass(frozen=True)
class Kind:
    """An engine, and in what it may differ."""

    create: Callable[[Path, Layout], Engine]
    slots: int = 2  # of the two that are asked for
    reads_files: bool = True
    progresses_while_loading: bool = True
    keeps_prefixes: bool = True


KINDS = {
    "batched": Kind(batched),
    "reference": Kind(reference, slots=1, progresses_while_loading=False, keeps_prefixes=False),
    "fake": Kind(fake, reads_files=False),
}
ALL = {**KINDS, "pooled": Kind(pooled)}
