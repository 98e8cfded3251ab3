"""Lines of a pull's progress, for listeners that come late or read slowly."""

from protos.store_pb2 import StoreProgress
from runner.host.registry.pull import Board


def test_a_late_listener_sees_each_line_once_as_it_is_now() -> None:
    board = Board()
    board.show(StoreProgress(status="pulling manifest"))
    for completed in (1, 2, 2, 3):
        board.show(StoreProgress(status="pulling abc", digest="abc", total_bytes=3, completed_bytes=completed))
    assert [line.status for line in board.since(0)] == ["pulling manifest", "pulling abc"]
    seen = board.changes.version
    assert list(board.since(seen)) == []
    board.show(StoreProgress(status="success"))
    assert [line.status for line in board.since(seen)] == ["success"]
    last = list(board.since(0))[1]
    assert (last.digest, last.completed_bytes, last.total_bytes) == ("abc", 3, 3)


def test_a_line_that_says_nothing_new_wakes_nobody() -> None:
    board = Board()
    board.show(StoreProgress(status="pulling manifest"))
    version = board.changes.version
    board.show(StoreProgress(status="pulling manifest"))
    assert board.changes.version == version
    assert list(board.since(version)) == []
