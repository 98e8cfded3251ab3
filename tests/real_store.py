"""The store of a node, as its host has it, on an event loop of a test; nothing may be pulled from anywhere."""

from dataclasses import dataclass
from pathlib import Path

from common.grpc.server import GrpcServer, bind_server
from protos import store_pb2, store_pb2_grpc
from runner.host.models.model_files import NodeModels
from runner.host.registry.jobs import PullJobs
from runner.host.registry.opening import open_fetching
from runner.host.settings import HostSettings
from runner.host.store.servicer import ModelStoreServicer
from runner.host.store.store import Store

BLOB_BYTES_MAX = 1_000_000
# Reserved for names that never resolve (RFC 6761), so that nothing else is on the list.
NO_REGISTRY = "registry.invalid"


@dataclass(slots=True, kw_only=True)
class RealStore:
    """Open from `open_store` to `close`."""

    server: GrpcServer
    pulls: PullJobs

    @property
    def address(self) -> str:
        """Return the address for gateways."""
        return self.server.address

    async def close(self) -> None:
        """Stop its server and its pulls."""
        await self.server.server.stop(None)
        await self.pulls.close()


async def open_store(directory: Path, listen: str = "127.0.0.1:0") -> RealStore:
    """The store in a directory, or a new one."""
    settings = HostSettings(registries=NO_REGISTRY)
    store = Store(NodeModels(directory / "models", directory / "cache"), blob_bytes_max=BLOB_BYTES_MAX, prunes=True)
    pulls, _ = open_fetching(settings, store, directory / "cache")
    stores = ModelStoreServicer(store, pulls.pull)
    server = bind_server(
        listen,
        register=lambda grpc_server: store_pb2_grpc.add_ModelStoreServicer_to_server(stores, grpc_server),
        services=[store_pb2.DESCRIPTOR.services_by_name["ModelStore"].full_name],
    )
    await server.start()
    return RealStore(server=server, pulls=pulls)
