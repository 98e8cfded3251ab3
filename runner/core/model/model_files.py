"""The files that one runner loads. Pure: names of files, nothing is opened."""

import math
from dataclasses import dataclass
from pathlib import Path

from common.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFile:
    """A LoRA adapter and how strongly it is applied; 1 is as trained."""

    path: Path
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """A model, its vision projector if it has one, and the adapters that every request goes through.

    A model that is split over files has the first in `model` and the others, in their order, in `more`. `draft` are the
    files of a smaller model that guesses its tokens; empty: none does.
    """

    model: Path
    more: tuple[Path, ...] = ()
    projector: Path | None = None
    adapters: tuple[AdapterFile, ...] = ()
    draft: tuple[Path, ...] = ()

    @property
    def weights(self) -> tuple[Path, ...]:
        """All files of the model itself."""
        return self.model, *self.more

    @property
    def all(self) -> tuple[Path, ...]:
        """Every file that a load reads, the model's own first."""
        projector = () if self.projector is None else (self.projector,)
        return *self.weights, *projector, *(adapter.path for adapter in self.adapters), *self.draft


def projector_stems(stem: str) -> tuple[str, str]:
    """Names of a model's projector, without suffix: beside "x.gguf" it is "x.mmproj.gguf" or "mmproj-x.gguf"."""
    return f"{stem}.mmproj", f"mmproj-{stem}"


def parse_adapter(text: str) -> AdapterFile:
    """Parse an adapter as the command line names it, PATH or PATH=SCALE.

    Raises:
        InvalidRequest: no path, or the scale is no number.
    """
    path, separator, number = text.rpartition("=")
    if not separator:
        path, number = text, "1"
    try:
        scale = float(number)
    except ValueError:
        raise InvalidRequest(f"adapter {text!r}: {number!r} is no scale", param="adapter") from None
    if not path or not math.isfinite(scale):
        raise InvalidRequest(f"adapter {text!r} is not PATH=SCALE", param="adapter")
    return AdapterFile(path=Path(path), scale=scale)


def adapter_argument(adapter: AdapterFile) -> str:
    """Format an adapter for `parse_adapter`."""
    return f"{adapter.path}={adapter.scale!r}"
