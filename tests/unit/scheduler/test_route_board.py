"""Inventory as the scheduler's gauges show it."""

import pytest
from structlog.testing import capture_logs

from common.clock import SystemClock
from common.model_details import KeptDetails, name_details, without_details
from common.seen_inventory import Laid
from protos import cluster_pb2, discovery_pb2
from scheduler import metrics
from scheduler.converters import KnownNodes
from scheduler.core.state.effects import PublishRoutes
from scheduler.core.values.faults import CrashRow
from scheduler.core.values.routing_table import ModelRoute
from scheduler.core.values.view import ModelFile, SpeedSource
from scheduler.routes import RouteBoard


class MovedClock(SystemClock):
    time_s = 10.0

    def now_s(self) -> float:
        return self.time_s


@pytest.mark.behaviour("B-131", "B-139")
def test_devices_are_shown_with_what_is_promised_on_them_and_ages_as_of_now() -> None:
    clock = MovedClock()
    board = RouteBoard(clock, KeptDetails())
    device = cluster_pb2.Device(id="GPU-1", total_bytes=100, free_bytes=60)
    received = discovery_pb2.Inventory(nodes=[cluster_pb2.Node(id="n", devices=[device], report_age_ms=200)])
    board.see_inventory(Laid().take(received))
    board.read_promises = lambda: ({("n", "GPU-1"): 40}, {("n", "GPU-1"): 7})
    clock.time_s += 1.5
    (node,) = board.inventory().nodes
    assert node.report_age_ms == 1700
    assert (node.devices[0].promised_bytes, node.devices[0].reserve_bytes) == (40, 7)
    # Decisions are made on what was received, and that stays as it came.
    assert received.nodes[0].devices[0] == device


def test_crashes_in_a_row_are_shown_at_their_node_at_moments_of_the_wall_clock() -> None:
    clock = MovedClock()
    board = RouteBoard(clock, KeptDetails())
    nodes = [cluster_pb2.Node(id=name) for name in ("n", "other")]
    board.see_inventory(Laid().take(discovery_pb2.Inventory(nodes=nodes)))
    row = CrashRow(
        model_name="m:latest", node_id="n", crashes=3, first_s=1.0, last_s=9.0, retry_at_s=11.0, excluded_until_s=None,
        error="signal 9",
    )  # fmt: skip
    board.read_crash_rows = lambda: [row]
    before_s = clock.wall_unix_s()
    crashed, other = board.inventory().nodes
    (shown,) = crashed.crash_rows
    assert not other.crash_rows
    assert (shown.model_name, shown.node_id, shown.crashes, shown.error) == ("m:latest", "n", 3, "signal 9")
    assert shown.last_at_unix_ms / 1000 == pytest.approx(before_s - 1, abs=1)
    assert shown.retry_at_unix_ms - shown.last_at_unix_ms == 2000
    assert not shown.HasField("excluded_until_unix_ms")


def described(template: str) -> cluster_pb2.Model:
    description = cluster_pb2.ModelDescription(chat_template=template, layer_count=4)
    model = cluster_pb2.Model(name="m:latest", digest="d", description=description)
    name_details(model)
    return model


async def test_routes_carry_a_models_template_once_and_whoever_comes_later_gets_it_too() -> None:
    details, laid = KeptDetails(), Laid()
    board = RouteBoard(SystemClock(), details)
    full = described("{{ messages }}")
    file = ModelFile(
        name="m:latest", digest="d", size_bytes=1, modified_at_unix_s=1, trained_context_tokens=8, layer_count=4
    )

    def receive(model: cluster_pb2.Model) -> None:
        details.take([model])
        board.see_inventory(laid.take(discovery_pb2.Inventory(nodes=[cluster_pb2.Node(id="n", models=[model])])))

    receive(full)
    board.publish(PublishRoutes(version=1, routes=(ModelRoute(model=file, replicas=()),), fence=7))
    first, late = board.watch(), board.watch()
    table = await anext(first)
    assert (table.routes[0].model, table.fence) == (full, 7)
    receive(without_details(full))
    board.publish(PublishRoutes(version=2, routes=(ModelRoute(model=file, replicas=()),)))
    assert (await anext(first)).routes[0].model == without_details(full)
    assert (await anext(late)).routes[0].model == full
    assert board.route("m:latest").model == full  # an answer to one caller is complete
    assert not board.inventory().nodes[0].models[0].description.chat_template

    receive(described("another"))
    board.publish(PublishRoutes(version=3, routes=(ModelRoute(model=file, replicas=()),)))
    assert (await anext(first)).routes[0].model.description.chat_template == "another"


def test_devices_are_shown_with_the_speed_that_ranks_them_and_where_it_comes_from() -> None:
    board = RouteBoard(MovedClock(), KeptDetails())
    devices = [cluster_pb2.Device(id="GPU-1", speed_bytes_s=900), cluster_pb2.Device(id="GPU-2", speed_bytes_s=800)]
    received = discovery_pb2.Inventory(nodes=[cluster_pb2.Node(id="n", devices=devices)])
    board.see_inventory(Laid().take(received))
    board.read_speeds = lambda: {("n", "GPU-1"): (550.0, SpeedSource.LIKE_DEVICES)}
    shown = board.inventory().nodes[0].devices
    assert [(one.rank_bytes_s, one.rank_source, one.speed_bytes_s) for one in shown] == [
        (550, cluster_pb2.SPEED_SOURCE_LIKE_DEVICES, 900),
        (0, cluster_pb2.SPEED_SOURCE_UNSPECIFIED, 800),
    ]


def test_a_model_whose_name_is_none_is_skipped_and_named_once_for_each_node() -> None:
    board, laid, known = RouteBoard(MovedClock(), KeptDetails()), Laid(), KnownNodes()
    before = metrics.SKIPPED_ROWS.labels(table="models")._value.get()
    with capture_logs() as logs:
        for _ in range(2):
            models = [cluster_pb2.Model(name=name, digest="d") for name in ("m:latest", "my model (1):latest")]
            seen = laid.take(discovery_pb2.Inventory(nodes=[cluster_pb2.Node(id="n", models=models)]))
            board.see_inventory(seen)
            ((node,), _) = known.views(seen)
    assert [model.name for model in node.models] == ["m:latest"]
    assert [(line["event"], line["node"], line["name"]) for line in logs] == [
        ("row.skipped", "n", "my model (1):latest")
    ]
    assert metrics.SKIPPED_ROWS.labels(table="models")._value.get() == before + 1
