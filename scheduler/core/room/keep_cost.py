"""What it is likely to cost to throw a replica out: the figures of the books, put into the formula of `demand`."""

from scheduler.core.books.books import Books
from scheduler.core.books.shared_files import keeping_of
from scheduler.core.values.constraints import Constraints
from scheduler.core.values.demand import NO_DEMAND, loss_of
from scheduler.core.values.policy import EvictionOrder
from scheduler.core.values.view import RunnerView


def loss_of_replica(books: Books, runner: RunnerView, now_s: float) -> float:
    """Seconds of work that are likely to be needed again."""
    memo = books.memos.get(runner.placement_id)
    if memo is not None and books.policy.eviction_order is EvictionOrder.LEAST_RECENTLY_USED:
        return 1.0 / (1.0 + memo.idle_s(now_s))
    if memo is not None and books.policy.eviction_order is EvictionOrder.FIRST_IN:
        return 1.0 / (1.0 + max(0.0, now_s - memo.ready_since_s))
    wishes = keeping_of(books, runner)
    default_ms = default_keep_alive_ms(books, wishes)
    return loss_of_model(
        books,
        wishes,
        runner.model_digest,
        now_s,
        held=held_bytes(runner),
        held_s=runner.held_prompt_s,
        kept_for_ever=(memo.keep_alive_ms(runner, default_ms) if memo is not None else default_ms) < 0,
    )


def loss_of_model(
    books: Books,
    wishes: Constraints,
    digest: str,
    now_s: float,
    *,
    held: int,
    held_s: float = 0.0,
    kept_for_ever: bool | None = None,
) -> float:
    """The same of a model that holds so many bytes. `kept_for_ever`: None: as `wishes` say."""
    if kept_for_ever is None:
        kept_for_ever = default_keep_alive_ms(books, wishes) < 0
    return loss_of(
        books.demand.get(digest, NO_DEMAND),
        now_s=now_s,
        size_bytes=held,
        held_s=held_s,
        kept_for_ever=kept_for_ever,
        priority=wishes.priority,
    )


def held_bytes(runner: RunnerView) -> int:
    """What it takes in all, or what it loads while nobody knows better."""
    return runner.memory.total_bytes if runner.memory is not None else runner.load_bytes_total


def default_keep_alive_ms(books: Books, wishes: Constraints) -> int:
    """What holds where no request says otherwise: the model's own setting, else everybody's."""
    return books.policy.keep_alive_ms if wishes.keep_alive_ms is None else wishes.keep_alive_ms


def see_requests(books: Books, now_s: float) -> None:
    """Count what every runner has accepted since it was seen last."""
    for _, runner in books.observed.replicas():
        memo = books.memos.get(runner.placement_id)
        if memo is None or memo.generation != runner.generation:
            continue
        news = runner.requests_total - memo.counted_requests
        memo.counted_requests = runner.requests_total
        if news > 0:
            books.demand[runner.model_digest] = books.demand.get(runner.model_digest, NO_DEMAND).asked(now_s)
