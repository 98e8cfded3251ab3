"""Engines on lent devices, and layouts for them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common.spec.layout import DeviceLayers, Layout
from runner.core.model.model_files import ModelFiles
from runner.engine.batched.engine import BatchedEngine
from runner.engine.batched.loop import BatchedOptions
from tests.integration.runner.contract import Driver, driven
from tests.limited_device import LimitedDevice

NAMES = ("gpu-a", "gpu-b", "gpu-c")


def spread(devices: tuple[LimitedDevice, ...], layers: tuple[int, ...], **fields: Any) -> Layout:
    """A small layout with so many layers on each device."""
    return Layout(
        devices=tuple(
            DeviceLayers(name, count, rpc_address=device.address)
            for name, count, device in zip(NAMES, layers, devices, strict=False)
        ),
        **{"slots": 2, "context_tokens": 512, "batch_tokens": 64, "threads": 1, **fields},
    )


@contextmanager
def loaded(path: Path, layout: Layout, *, drafted: int | None = None, **files: Any) -> Iterator[Driver]:
    """The batched engine on a layout, with so many guesses a call; its thread has to end."""
    options = BatchedOptions(verify=True, drafted_tokens=drafted)
    engine = BatchedEngine(ModelFiles(model=path, **files), layout, options)
    with driven(engine) as driver:
        yield driver
