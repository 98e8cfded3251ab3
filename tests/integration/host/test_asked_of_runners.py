"""A host keeps what a runner was loaded for, and tells it: also the next host, after a crash."""

from pathlib import Path

from protos import cluster_pb2
from tests.integration.host.node import SMALL, Inventory, running_node

ASKED = cluster_pb2.LoadAsked(context_tokens=512, threads=1, num_gpu=0)
READY = cluster_pb2.RUNNER_STATE_READY


def ready(inventory: Inventory) -> list[cluster_pb2.RunnerRecord]:
    return [runner for node in inventory.nodes for runner in node.runners if runner.status.state == READY]


async def test_what_was_asked_of_a_runner_is_reported_by_its_host_and_by_the_next_one(
    tmp_path: Path, models_directory: Path
) -> None:
    async with running_node(tmp_path, models_directory) as node:
        request = await node.start_request(layout=SMALL)
        request.asked.CopyFrom(ASKED)
        record = await node.run(request)
        assert record.asked == ASKED
        (shown,) = ready(await node.inventory(lambda seen: bool(ready(seen))))
        assert shown.asked == ASKED
        node.host.process.kill()
        await node.host.end()
        await node.restart_host()
        (adopted,) = ready(await node.inventory(lambda seen: [one.pid for one in ready(seen)] == [record.pid]))
        assert adopted.asked == ASKED
