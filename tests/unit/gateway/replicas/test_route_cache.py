"""The routing table of a gateway: one bad row never spoils it, and no error is hidden."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from common.errors import ModelNotFound
from gateway import metrics
from gateway.core.request.model_names import parse_model_name
from gateway.replicas.routes import RouteCache, watch_routes
from protos import cluster_pb2, scheduler_pb2
from scheduler.client import SchedulerClient


def table(*names: str, aliases: tuple[str, ...] = (), broken: tuple[str, ...] = ()) -> scheduler_pb2.RouteTable:
    routes = [
        scheduler_pb2.ModelRoute(model=cluster_pb2.Model(name=name, error="broken" if name in broken else ""))
        for name in names
    ]
    listed = scheduler_pb2.AliasTable(aliases=[scheduler_pb2.Alias(name=name, target="demo") for name in aliases])
    return scheduler_pb2.RouteTable(version=7, routes=routes, aliases=listed)


def skipped_total(kind: str) -> float:
    return float(metrics.SKIPPED_ROWS.labels(table=kind)._value.get())


@pytest.mark.parametrize(
    "bad", ["my model (1):latest", "模型:latest", "-lead:latest", "m" * 85 + ":latest", "", "a\nb"]
)
def test_a_name_that_is_none_is_skipped_and_named_and_the_rest_is_served(bad: str) -> None:
    cache, before = RouteCache(), skipped_total("models")
    with capture_logs() as logs:
        cache.replace_all(table(bad, "demo:latest"))
        cache.replace_all(table(bad, "demo:latest"))
    assert [route.model.name for route in cache.all()] == ["demo:latest"]
    assert cache.find("demo") is not None
    assert cache.heard
    (line,) = logs  # once, not with every table
    assert (line["event"], line["log_level"], line["text"]) == ("row.skipped", "warning", "not a valid model name")
    assert "\n" not in line["name"]
    assert skipped_total("models") == before + 1


def test_a_bad_row_that_left_and_comes_back_is_named_again() -> None:
    cache = RouteCache()
    with capture_logs() as logs:
        for names in (("x y",), (), ("x y",)):
            cache.replace_all(table(*names, "demo:latest"))
    assert [line["name"] for line in logs] == ["x y", "x y"]


def test_of_two_names_that_differ_by_case_the_usable_one_is_served_and_the_other_named() -> None:
    cache = RouteCache()
    with capture_logs() as logs:
        cache.replace_all(table("Demo:latest", "demo:latest", broken=("Demo:latest",)))
    assert [route.model.name for route in cache.all()] == ["demo:latest"]
    assert cache.proto_of(cache.all()[0]).model.name == "demo:latest"
    assert [(line["name"], line["text"]) for line in logs] == [("Demo:latest", "the same name as demo:latest")]


def test_a_bad_alias_is_skipped_and_named() -> None:
    cache, before = RouteCache(), skipped_total("aliases")
    with capture_logs() as logs:
        cache.replace_all(table("demo:latest", aliases=("no name", "fine")))
    assert [alias.name for alias in cache.aliases.values()] == ["fine"]
    assert [line["name"] for line in logs] == ["no name"]
    assert skipped_total("aliases") == before + 1


@given(st.lists(st.text(max_size=20).filter(lambda text: text.isprintable())))
def test_whatever_is_among_them_the_good_rows_stay(names: list[str]) -> None:
    cache = RouteCache()
    with capture_logs():
        cache.replace_all(table(*names, "demo:latest"))
    assert cache.find("demo") is not None
    for name in names:
        try:
            key = parse_model_name(name).key
        except ModelNotFound:
            continue
        assert cache.by_key(key) is not None


class Tables:
    """A scheduler that has no more to send after these."""

    def __init__(self, *sent: scheduler_pb2.RouteTable) -> None:
        self._sent = sent
        self.is_over = asyncio.Event()

    async def watch_routes(self, **_: object) -> AsyncIterator[scheduler_pb2.RouteTable]:
        for one in self._sent:
            yield one
        self.is_over.set()
        await asyncio.Event().wait()


async def watched(cache: RouteCache, tables: Tables) -> None:
    scheduler: SchedulerClient = tables  # type: ignore[assignment]  # of its methods only this one is called
    watching = asyncio.create_task(watch_routes(cache, scheduler))
    await asyncio.wait_for(tables.is_over.wait(), 10)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_a_table_that_cannot_be_taken_is_an_error_in_the_log_and_the_next_one_counts() -> None:
    cache = RouteCache()
    refused = metrics.REFUSED_TABLES._value.get()

    def refuse_once() -> None:
        stop()
        raise ValueError("a listener that fails")

    stop = cache.subscribe(refuse_once)
    with capture_logs() as logs:
        await watched(cache, Tables(table("a"), table("b")))
    assert [route.model.name for route in cache.all()] == ["b"]
    assert [(line["event"], line["log_level"], line["text"]) for line in logs] == [
        ("routes.refused", "error", "a listener that fails"),
    ]
    assert metrics.REFUSED_TABLES._value.get() == refused + 1
