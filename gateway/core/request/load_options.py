"""The options of a request that say how its replica is to be loaded. Pure."""

from collections.abc import Mapping

from common.spec.load_options import LoadOptions
from gateway.core.request.option_table import OptionValue


def load_options(options: Mapping[str, OptionValue]) -> LoadOptions:
    """Pick the load options out of checked options. num_gpu below 0 means "as many as fit", as it does for Ollama."""
    num_gpu = _whole(options, "num_gpu")
    return LoadOptions(
        require_gpu=options.get("require_gpu") is True,
        num_gpu=num_gpu if num_gpu is not None and num_gpu >= 0 else None,
        main_gpu=_whole(options, "main_gpu"),
        batch_tokens=_whole(options, "num_batch") or 0,
        threads=_whole(options, "num_thread") or 0,
        use_mmap=use_mmap if isinstance(use_mmap := options.get("use_mmap"), bool) else None,
    )


def over(requested: LoadOptions, own: LoadOptions) -> LoadOptions:
    """Merge a request's load options over those of its model."""
    return LoadOptions(
        require_gpu=requested.require_gpu or own.require_gpu,
        num_gpu=requested.num_gpu if requested.num_gpu is not None else own.num_gpu,
        main_gpu=requested.main_gpu if requested.main_gpu is not None else own.main_gpu,
        batch_tokens=requested.batch_tokens or own.batch_tokens,
        threads=requested.threads or own.threads,
        use_mmap=requested.use_mmap if requested.use_mmap is not None else own.use_mmap,
    )


def _whole(options: Mapping[str, OptionValue], name: str) -> int | None:
    value = options.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
