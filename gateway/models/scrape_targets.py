"""Scrape targets for Prometheus, in the format of its HTTP service discovery."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from common.network import UNIX_PREFIX, is_private_listener, reachable, split_host_port
from protos import cluster_pb2, discovery_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnAddresses:
    """Addresses at which this gateway is scraped and knows its scheduler."""

    metrics: str
    http: str
    scheduler: str  # the first, where there are several


Group = dict[str, Any]
NO_ADDRESSES = OwnAddresses(metrics="", http="", scheduler="")


def scrape_targets(
    inventory: discovery_pb2.Inventory, own: OwnAddresses, *, dialled: str = "", secured: bool = False
) -> list[Group]:
    """Return one group for each process: this gateway, its scheduler and discovery, every host, every runner.

    A gateway that listens on any address does not know its own: `dialled`, the `Host` of the request, says it.
    Labels are added to everything that is scraped there: `service`, of hosts and runners `node`, of runners also
    `model` and `placement`; `__scheme__` where pages for other machines have TLS (`secured`). Other gateways, standbys
    and further discoveries are for DNS or files to find.
    """
    scheduler = own.scheduler.partition(",")[0].strip()
    groups = [
        *_group(reachable(reachable(own.metrics, own.http), _with_port(dialled)), service="gateway"),
        *_group(reachable(inventory.scheduler_metrics_address, scheduler), service="scheduler"),
        *_group(inventory.metrics_address, service="discovery"),
        *(group for node in inventory.nodes for group in _node_groups(node)),
    ]
    for group in groups:
        if secured and not is_private_listener(group["targets"][0]):
            group["labels"]["__scheme__"] = "https"
    return groups


def _with_port(dialled: str) -> str:
    """`Host` as `host:port`; nothing where it is neither."""
    for address in (dialled, f"{dialled}:0"):
        try:
            if split_host_port(address)[0]:
                return address
        except ValueError:
            continue
    return ""


def _node_groups(node: cluster_pb2.Node) -> Iterator[Group]:
    yield from _group(reachable(node.metrics_address, node.address), service="host", node=node.id)
    for runner in node.runners:
        if runner.status.state == cluster_pb2.RUNNER_STATE_ERROR:
            continue  # dead ones stay in the inventory for a while
        known_as = node.address if runner.address.startswith(UNIX_PREFIX) else runner.address
        yield from _group(
            reachable(runner.metrics_address, known_as),
            service="runner",
            node=node.id,
            model=runner.model_name,
            placement=runner.placement.placement_id,
        )


def _group(address: str, **labels: str) -> Iterator[Group]:
    if address:
        yield {"targets": [address], "labels": labels}
