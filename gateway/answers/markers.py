"""Ids of the markers that answers are parsed by, where they are special tokens that a runner would hide."""

from gateway.core.models.routes import ModelInfo
from protos import runner_pb2
from runner.client import RunnerClient

_MODELS_CACHED_MAX = 1024


class MarkerIds:
    """Asks a runner once for each model and set of markers."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, tuple[str, ...]], tuple[int, ...]] = {}

    def known(self, model: ModelInfo, markers: tuple[str, ...]) -> tuple[int, ...] | None:
        """Return ids of the markers that are special tokens; None: a runner has to be asked for them with `of`."""
        special = _special(model, markers)
        return self._known.get((model.digest, special)) if special else ()

    async def of(self, model: ModelInfo, markers: tuple[str, ...], runner: RunnerClient) -> tuple[int, ...]:
        """Return ids of the markers that are special tokens.

        Raises:
            PunaError: the runner is gone; another one may answer.
        """
        special = _special(model, markers)
        if not special:
            return ()
        key = (model.digest, special)
        if key not in self._known:
            ids: list[int] = []
            for marker in special:
                request = runner_pb2.TokenizeRequest(segments=[runner_pb2.Segment(text=marker)])
                answer = await runner.tokenize(request)
                ids += answer.ids if len(answer.ids) == 1 else ()
            while len(self._known) >= _MODELS_CACHED_MAX:
                del self._known[next(iter(self._known))]
            self._known[key] = tuple(ids)
        return self._known[key]


def _special(model: ModelInfo, markers: tuple[str, ...]) -> tuple[str, ...]:
    return tuple([marker for marker in markers if marker in model.special_tokens])
