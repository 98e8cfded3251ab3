"""Callers who find a replica that serves already: how long it is to stay for them."""

from scheduler.core.books.books import Books
from scheduler.core.books.effects import SaveDesired
from scheduler.core.values.view import RunnerView


def come_to(books: Books, runner: RunnerView, keep_alive_ms: int | None, *, load_only: bool, now_s: float) -> None:
    """Somebody is told to use a replica, or only wanted it loaded. `keep_alive_ms`: None: nothing was said."""
    memo = books.memos.get(runner.placement_id)
    if memo is None:
        return
    if load_only:
        memo.renew(now_s)
    else:
        memo.send_caller(runner, now_s)
    if keep_alive_ms is not None:
        memo.ask(keep_alive_ms, runner)
        _write_keep_alive(books, runner, keep_alive_ms)


def _write_keep_alive(books: Books, runner: RunnerView, keep_alive_ms: int) -> None:
    """So that the next leader knows it too. Nothing depends on it: a store that is away is no reason to refuse."""
    record = books.desired.get(runner.placement_id)
    if record is None or books.leadership is None or record.generation != runner.generation:
        return
    newer = record.with_keep_alive(keep_alive_ms, runner.keep_alive_wishes)
    if newer == record:
        return
    books.desired[runner.placement_id] = newer
    books.emit(SaveDesired(fence=books.leadership.fence, record=newer))
