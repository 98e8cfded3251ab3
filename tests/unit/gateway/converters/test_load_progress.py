"""Progress of loads on its way through the gateway: nothing of it is lost, and nothing unknown becomes a number."""

import pytest

from gateway.converters.generation import LOADING, QUEUED
from gateway.core.request.answers import LoadUpdate, Queued
from gateway.http.puna.placements import _load_lines

IN_QUEUE = Queued(position=2, waits_for="measuring", eta_s=12.5)
IN_LOAD = LoadUpdate(fraction=0.5, bytes_done=5, bytes_total=10, waits_for="its files", eta_s=0.0)


@pytest.mark.parametrize("queued", [IN_QUEUE, Queued(position=1)])
def test_a_place_in_the_queue_passes_unchanged(queued: Queued) -> None:
    assert QUEUED.from_proto(QUEUED.to_proto(queued)) == queued


@pytest.mark.parametrize("loading", [IN_LOAD, LoadUpdate(fraction=0.25)])
def test_a_load_passes_unchanged(loading: LoadUpdate) -> None:
    assert LOADING.from_proto(LOADING.to_proto(loading)) == loading


def test_lines_of_a_load_have_what_is_known() -> None:
    lines = [line for event in (Queued(position=1), IN_QUEUE, IN_LOAD) for line in _load_lines(event)]
    assert lines == [
        {"status": "queued", "position": 1},
        {"status": "queued", "position": 2, "waits_for": "measuring", "eta_s": 12.5},
        {
            "status": "loading",
            "fraction": 0.5,
            "bytes_done": 5,
            "bytes_total": 10,
            "waits_for": "its files",
            "eta_s": 0.0,
        },
    ]
