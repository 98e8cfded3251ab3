"""Charges to a caller's quota by a request's record."""

import asyncio

from common.clock import SystemClock
from gateway.answers.record import RequestRecord
from gateway.core.keys.keys import ALL_SCOPES, Key, Quota
from gateway.core.keys.quotas import Account
from gateway.core.request.answers import Dialect
from gateway.keys.quota_book import QuotaUsage
from gateway.keys.visits import Visit, begin_visit


def left_after(record: RequestRecord, *, reserved: int) -> int:
    """Return the rest of 1000 tokens after the request."""
    key = Key(id="a" * 8, digest="", owner="ada", tenant="ada", scopes=ALL_SCOPES, quota=Quota(tokens_per_minute=1000))
    account = Account(key.quota)
    usage = QuotaUsage(key=key, request_id="req", account=account, clock=SystemClock(), redis=None)
    visit = Visit(clock=SystemClock(), key=key, usage=usage)

    async def run() -> None:
        begin_visit(visit)
        await visit.reserve(reserved)
        record.settle()
        record.settle()  # the end of a request is noticed in two places

    asyncio.run(run())
    return account.levels(SystemClock().now_s())["tokens"].remaining


def test_an_answer_that_was_cut_counts_as_far_as_it_came() -> None:
    record = RequestRecord(dialect=Dialect.OLLAMA, route="/api/chat", prompt_tokens=300)
    for _ in range(5):
        record.token_arrived(20)
    assert 600 <= left_after(record, reserved=900) <= 700


def test_a_request_that_reached_no_runner_costs_nothing() -> None:
    record = RequestRecord(dialect=Dialect.OLLAMA, route="/api/chat")
    assert left_after(record, reserved=1000) == 1000


def test_vectors_count_what_was_read() -> None:
    record = RequestRecord(dialect=Dialect.OLLAMA, route="/api/embed", vector_tokens=500)
    assert 500 <= left_after(record, reserved=100) <= 600
