"""The options of a request that say how its replica is to be loaded. Pure."""

from collections.abc import Mapping
from dataclasses import fields, replace

from common.spec.load_options import NO_LOAD_OPTIONS, LoadOptions
from gateway.core.request.option_table import OptionValue, whole_number


def load_options(options: Mapping[str, OptionValue]) -> LoadOptions:
    """Pick the load options out of checked options. num_gpu below 0 means "as many as fit", as it does for Ollama."""
    num_gpu = whole_number(options.get("num_gpu"))
    return LoadOptions(
        require_gpu=options.get("require_gpu") is True,
        num_gpu=num_gpu if num_gpu is not None and num_gpu >= 0 else None,
        main_gpu=whole_number(options.get("main_gpu")),
        batch_tokens=whole_number(options.get("num_batch")) or 0,
        threads=whole_number(options.get("num_thread")) or 0,
        use_mmap=use_mmap if isinstance(use_mmap := options.get("use_mmap"), bool) else None,
    )


def over(requested: LoadOptions, own: LoadOptions) -> LoadOptions:
    """Merge a request's load options over those of its model."""
    values = {one.name: getattr(requested, one.name) for one in fields(requested)}
    return replace(own, **{name: value for name, value in values.items() if value != getattr(NO_LOAD_OPTIONS, name)})
