"""Options of a replica are kept, and readable by the version before and the next."""

from typing import Any

import orjson
import pytest

from common.spec.layout import Layout
from common.spec.load_options import LoadOptions
from protos import cluster_pb2
from scheduler.converters import from_asked, to_asked, to_runner
from scheduler.core.values.asked import NOTHING_ASKED, Asked
from scheduler.core.values.desired import DesiredPlacement, Phase
from scheduler.redis_store import decode, encode

EVERYTHING = Asked(
    context_tokens=768,
    options=LoadOptions(require_gpu=True, num_gpu=3, main_gpu=1, batch_tokens=64, threads=2, use_mmap=False),
)
# None is not 0: "no layers on devices" and "the first GPU" are options.
ZEROES = Asked(options=LoadOptions(num_gpu=0, main_gpu=0, use_mmap=True))


def record(asked: Asked) -> DesiredPlacement:
    return DesiredPlacement(
        placement_id="p",
        generation=1,
        phase=Phase.RUNNING,
        node_id="a",
        model_name="m:latest",
        model_digest="d",
        layout=Layout(context_tokens=768, slots=1, batch_tokens=64),
        asked=asked,
    )


def stored(placement: DesiredPlacement) -> dict[str, Any]:
    """A record as it comes back from the store."""
    fields: dict[str, Any] = orjson.loads(orjson.dumps(encode(placement)))
    return fields


@pytest.mark.parametrize("asked", [NOTHING_ASKED, EVERYTHING, ZEROES])
def test_what_was_asked_is_stored_and_crosses_unchanged(asked: Asked) -> None:
    assert decode(stored(record(asked))) == record(asked)
    assert to_asked(from_asked(asked)) == asked
    assert to_runner(cluster_pb2.RunnerRecord(asked=from_asked(asked))).asked == asked


@pytest.mark.parametrize("written", [None, {}, {"context_tokens": None, "options": None}])
def test_a_record_of_the_version_before_asks_for_nothing(written: object) -> None:
    fields = stored(record(EVERYTHING))
    del fields["asked"]
    if written is not None:
        fields["asked"] = written
    assert decode(fields) == record(NOTHING_ASKED)


def test_the_version_before_finds_its_fields_as_they_were() -> None:
    fields = stored(record(EVERYTHING))
    before = stored(record(NOTHING_ASKED))
    assert {name for name in fields if fields[name] != before[name]} == {"asked"}
    assert fields["spec_digest"] == before["spec_digest"]


def test_what_a_later_version_adds_is_ignored() -> None:
    fields = stored(record(EVERYTHING))
    fields["asked"]["later"] = 1
    fields["asked"]["options"]["later"] = {"more": 2}
    fields["later"] = 3
    assert decode(fields) == record(EVERYTHING)


def test_a_runner_of_an_older_host_has_no_options() -> None:
    assert to_runner(cluster_pb2.RunnerRecord()).asked == NOTHING_ASKED
