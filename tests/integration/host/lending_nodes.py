"""Two nodes that lend to each other, commanded as the scheduler does."""

import contextlib
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import PlacementMismatch
from protos import cluster_pb2, host_pb2
from tests.integration.host.node import SMALL, Node, running_node


@dataclass(kw_only=True)
class Pair:
    """`head` runs models, `lender` lends its devices."""

    head: Node
    lender: Node
    _leases: list[cluster_pb2.PlacementRef] = field(default_factory=list)

    async def certificate(self, node: Node) -> bytes:
        """As the inventory shows it."""
        inventory = await node.inventory(lambda seen: any(one.tunnel_certificate for one in seen.nodes))
        return inventory.nodes[0].tunnel_certificate

    async def lend_request(self, placement: cluster_pb2.PlacementRef, **changes: Any) -> host_pb2.LendRequest:
        """A Lend of the lender's CPU to the head."""
        share = host_pb2.LentShare(planned=cluster_pb2.DeviceMemory(device_id="cpu", weights_bytes=1_000_000))
        parts = {
            "fence": self.lender.fence,
            "placement": placement,
            "borrower_node_id": "head",
            "borrower_certificate": await self.certificate(self.head),
            "devices": [share],
            **changes,
        }
        return host_pb2.LendRequest(**parts)

    async def lend(self, placement: cluster_pb2.PlacementRef, **changes: Any) -> host_pb2.Peer:
        """Have the lender lend; what the head needs to know about it."""
        self._leases.append(placement)
        response = await self.lender.client.lend(self.lender.address, await self.lend_request(placement, **changes))
        return host_pb2.Peer(
            node_id="lender",
            lease=placement,
            tunnel_address=response.tunnel_address,
            certificate=response.certificate,
            devices=response.devices,
        )

    async def clear(self) -> None:
        """Stop what was started and take back what was lent."""
        await self.head.clear()
        for placement in self._leases:
            with contextlib.suppress(PlacementMismatch):  # a newer generation was lent
                request = host_pb2.StopRequest(fence=self.lender.fence, placement=placement)
                await self.lender.client.stop(self.lender.address, request)
        self._leases.clear()


def new_placement() -> cluster_pb2.PlacementRef:
    """A placement that nobody knows."""
    return cluster_pb2.PlacementRef(placement_id=str(uuid.uuid4()), generation=1)


def over_both(layers: int, device_id: str = "cpu") -> cluster_pb2.Layout:
    """The first layers on a device of the lender; the rest, and the head's own part, in the head's RAM."""
    layout = cluster_pb2.Layout()
    layout.CopyFrom(SMALL)
    layout.devices.add(device_id=device_id, layer_count=layers, node_id="lender")
    return layout


@asynccontextmanager
async def running_pair(directory: Path, models: Path, *, rpc_devices: str = "") -> AsyncIterator[Pair]:
    """Two hosts in processes of their own. `rpc_devices` are the lender's."""
    async with AsyncExitStack() as stack:
        nodes = []
        for name, settings in (("head", {}), ("lender", {"PUNA_RPC_DEVICES": rpc_devices})):
            node = running_node(directory / name, models, PUNA_RPC="1", PUNA_NODE_ID=name, **settings)
            nodes.append(await stack.enter_async_context(node))
        yield Pair(head=nodes[0], lender=nodes[1])
