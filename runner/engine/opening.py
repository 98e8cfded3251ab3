"""Make the engine that a model, its layout and the settings ask for."""

from dataclasses import dataclass, field
from importlib import import_module
from typing import assert_never

from common.errors import InvalidRequest
from common.spec.layout import Layout
from common.telemetry.logs import get_logger
from runner.core.model.model_files import ModelFiles
from runner.core.pooled.pooling import pooling_of
from runner.engine.batched.engine import BatchedEngine
from runner.engine.batched.loop import BatchedOptions
from runner.engine.contract.choice import EngineName, choose_engine, parse_engine
from runner.engine.contract.engine import Engine
from runner.engine.llama.launch import ModelHeader
from runner.engine.pooled.engine import PooledLlamaEngine

log = get_logger()

# Engines that only tests use: part of a checkout and of no wheel. Each module has a function `open_engine`.
_TEST_ENGINES = "tests.engines"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Options that are not part of the layout. Each engine uses its own."""

    setting: str = ""  # the engine for models whose layout names none
    batched: BatchedOptions = field(default_factory=BatchedOptions)
    test: str = ""  # JSON, for an engine of the tests


def open_engine(files: ModelFiles, layout: Layout, options: EngineOptions, header: ModelHeader | None) -> Engine:
    """Open the engine for a model's files; it is not started yet. Without a `header` its load will say why.

    Raises:
        InvalidRequest: the layout or the setting names an engine that does not exist or is not installed.
    """
    asked = parse_engine(layout.engine) or parse_engine(options.setting)
    pooling = pooling_of(header.metadata) if header is not None and asked is not EngineName.FAKE else None
    choice = choose_engine(layout=layout.engine, setting=options.setting, pools=pooling is not None)
    if choice.warning:
        log.warning("engine.replaced", engine=choice.name, text=choice.warning)
    match choice.name:
        case EngineName.BATCHED:
            return BatchedEngine(files, layout, options.batched, header=header)
        case EngineName.POOLED:
            assert pooling is not None, "only a model that pools is given to this engine"
            return PooledLlamaEngine(files, layout, pooling, header=header)
        case EngineName.REFERENCE | EngineName.FAKE:
            return _open_test_engine(choice.name, files, layout, options)
        case _:
            assert_never(choice.name)


def _open_test_engine(name: EngineName, files: ModelFiles, layout: Layout, options: EngineOptions) -> Engine:
    """Open an engine of `_TEST_ENGINES`.

    Raises:
        InvalidRequest: it is not installed.
    """
    try:
        engines = import_module(f"{_TEST_ENGINES}.{name.value}")
    except ModuleNotFoundError as error:
        raise InvalidRequest(f"engine {name.value!r} is made for tests and not installed; use 'batched'") from error
    engine: Engine = engines.open_engine(files, layout, options.test)
    return engine
