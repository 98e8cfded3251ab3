"""Make the engine that a model, its layout and the settings ask for."""

from dataclasses import dataclass, field
from typing import assert_never

from common.telemetry.logs import get_logger
from runner.core.layout.layout import LaunchLayout
from runner.core.model.model_files import ModelFiles
from runner.engine.batched.engine import BatchedEngine, BatchedOptions
from runner.engine.contract.choice import EngineName, choose_engine, parse_engine
from runner.engine.contract.engine import Engine
from runner.engine.plain.fake import FakeEngine
from runner.engine.plain.fake_options import FakeOptions
from runner.engine.plain.reference import ReferenceEngine
from runner.engine.pooled.engine import PooledLlamaEngine, read_pooling

log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What does not come from the layout. Each engine takes what is its own."""

    setting: str = ""  # the engine for models whose layout names none
    batched: BatchedOptions = field(default_factory=BatchedOptions)
    fake: FakeOptions = field(default_factory=FakeOptions)


def open_engine(files: ModelFiles, layout: LaunchLayout, options: EngineOptions) -> Engine:
    """The engine for a model's files, not yet started.

    Raises:
        InvalidRequest: the layout or the setting names an engine that does not exist.
    """
    asked = parse_engine(layout.engine) or parse_engine(options.setting)
    # A fake needs no file, so none is looked at.
    pooling = None if asked is EngineName.FAKE else read_pooling(files.model)
    choice = choose_engine(layout=layout.engine, setting=options.setting, pools=pooling is not None)
    if choice.warning:
        log.warning("engine.replaced", engine=choice.name, text=choice.warning)
    match choice.name:
        case EngineName.BATCHED:
            return BatchedEngine(files, layout, options.batched)
        case EngineName.POOLED:
            assert pooling is not None, "only a model that pools is given to this engine"
            return PooledLlamaEngine(files, layout, pooling)
        case EngineName.REFERENCE:
            return ReferenceEngine(files, layout)
        case EngineName.FAKE:
            return FakeEngine(files, layout, options.fake)
        case _:
            assert_never(choice.name)
