"""The options of a request that say how its replica is to be loaded. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.core.asked.option_table import OptionValue


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """`require_gpu`, `num_gpu` and `main_gpu` need a replica that was loaded so; the others count for a new one."""

    require_gpu: bool = False
    num_gpu: int | None = None
    main_gpu: int | None = None
    batch_tokens: int = 0
    threads: int = 0
    use_mmap: bool | None = None


NO_LOAD_OPTIONS = LoadOptions()


def load_options(options: Mapping[str, OptionValue]) -> LoadOptions:
    """Those of checked options. num_gpu below 0 means "as many as fit", as it does for Ollama."""
    num_gpu = _whole(options, "num_gpu")
    return LoadOptions(
        require_gpu=options.get("require_gpu") is True,
        num_gpu=num_gpu if num_gpu is not None and num_gpu >= 0 else None,
        main_gpu=_whole(options, "main_gpu"),
        batch_tokens=_whole(options, "num_batch") or 0,
        threads=_whole(options, "num_thread") or 0,
        use_mmap=use_mmap if isinstance(use_mmap := options.get("use_mmap"), bool) else None,
    )


def over(asked: LoadOptions, own: LoadOptions) -> LoadOptions:
    """What a request asks for, and where it says nothing what its model does."""
    return LoadOptions(
        require_gpu=asked.require_gpu or own.require_gpu,
        num_gpu=asked.num_gpu if asked.num_gpu is not None else own.num_gpu,
        main_gpu=asked.main_gpu if asked.main_gpu is not None else own.main_gpu,
        batch_tokens=asked.batch_tokens or own.batch_tokens,
        threads=asked.threads or own.threads,
        use_mmap=asked.use_mmap if asked.use_mmap is not None else own.use_mmap,
    )


def _whole(options: Mapping[str, OptionValue], name: str) -> int | None:
    value = options.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
