"""Model stores of all nodes as one: choice of the node for each call, and the wait until its result is visible."""

import asyncio
import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from common.closing import closing
from common.errors import InvalidRequest, ModelNotFound, ModelUnavailable, PunaError
from common.telemetry.logs import get_logger
from gateway.core.models.routes import RouteInfo
from gateway.core.models.store_choice import (
    StoreNode,
    holders,
    node_to_create,
    node_to_pull,
    pull_sources,
    roomiest,
)
from gateway.core.request.model_names import model_not_found, parse_model_name
from gateway.replicas.routes import RouteCache
from protos import discovery_pb2, store_pb2
from runner.host.store_client import StoreClient
from scheduler.client import SchedulerClient

log = get_logger()

# News of a store travel over host, discovery and scheduler; usually that takes a few tens of milliseconds.
SHOWN_WITHIN_S = 10.0
_NO_STORE = "no node with a model store can be reached"


@dataclass(slots=True)
class ModelStores:
    """Chooses nodes and speaks to their stores. Everything that is done here can be seen in the routes afterwards."""

    scheduler: SchedulerClient
    routes: RouteCache
    stores: StoreClient

    async def holders(self) -> Mapping[str, frozenset[str]]:
        """Map keys of names to the nodes that have them; empty without a scheduler."""
        try:
            nodes = await self._nodes()
        except ModelUnavailable:
            return {}
        found: dict[str, set[str]] = {}
        for node in nodes:
            for key in node.models:
                found.setdefault(key, set()).add(node.id)
        return {key: frozenset(ids) for key, ids in found.items()}

    async def pull(self, name: str, *, insecure: bool) -> AsyncIterator[store_pb2.StoreProgress]:
        """Fetch a model from its registry; a client that leaves does not stop that at once.

        Raises:
            PunaError: as the store raised it.
        """
        nodes = await self._nodes()
        node = _found(node_to_pull(nodes, parse_model_name(name).key))
        request = store_pb2.PullRequest(name=name, insecure=insecure, sources=pull_sources(nodes, node))
        async with closing(self.stores.pull(node.address, request)) as steps:
            async for step in self._shown_before_the_end(steps, node, name):
                yield step

    async def create(self, request: store_pb2.CreateRequest) -> AsyncIterator[store_pb2.StoreProgress]:
        """Make a model where most of what it is made of lies; the rest is brought there first.

        Raises:
            ModelNotFound: no node has the model that it is made from.
            InvalidRequest: a blob was never sent, or something is no GGUF.
        """
        nodes: Sequence[StoreNode] = await self._nodes()
        able = holders(nodes, parse_model_name(request.from_model).key) if request.from_model else nodes
        if not able and request.from_model:
            raise model_not_found(request.from_model)
        digests = sorted({*request.files.values(), *request.adapters.values()})
        blobs = await self._blobs(nodes, digests)
        node = _found(node_to_create(able, blobs))
        known = {digest for sizes in blobs.values() for digest in sizes}
        if lost := [digest for digest in digests if digest not in known]:
            raise InvalidRequest(f"blob sha256:{lost[0]} was not found; send it first", param="files")
        for digest in digests:
            if digest not in blobs.get(node.id, {}):
                yield store_pb2.StoreProgress(status=f"copying {digest[:12]}", digest=f"sha256:{digest}")
                await self._bring(digest, nodes, blobs, node)
        async with closing(self.stores.create(node.address, request)) as steps:
            async for step in self._shown_before_the_end(steps, node, request.name):
                yield step

    async def copy(self, route: RouteInfo, destination: str) -> None:
        """Give a model a second name, on every node that has it.

        Raises:
            ModelNotFound, InvalidRequest: as the stores raised it.
        """
        source = route.model.name
        nodes = [node for node in holders(await self._nodes(), parse_model_name(source).key) if not node.is_silent]
        if not nodes:
            raise ModelUnavailable(_NO_STORE, retry_after_s=1.0)
        await _on_all(self.stores.copy(node.address, source=source, destination=destination) for node in nodes)
        await self._until_shown(nodes[0], destination)

    async def delete(self, route: RouteInfo) -> None:
        """Forget a name on every node; replicas that no other name keeps go once they are idle.

        Raises:
            PunaError: as a store raised it; the other nodes have forgotten the name all the same.
        """
        name, digest = route.model.name, route.model.digest
        nodes = holders(await self._nodes(), parse_model_name(name).key)
        if not nodes:
            raise model_not_found(name)
        others = [other for other in self.routes.all() if other.model.digest == digest and other.model.name != name]
        if route.replicas and not others:
            await self.scheduler.unload_model(name)
        await _on_all(self.stores.delete(node.address, name) for node in nodes)
        key, before = parse_model_name(name).key, route.model.manifest_digest
        await self._until(lambda found: found is None or found.model.manifest_digest != before, key)

    async def header(self, name: str, digest: str) -> Mapping[str, Any] | None:
        """Return the header of a model's file, "metadata" and "tensors"; None if no node can read it."""
        try:
            nodes = holders(await self._nodes(), parse_model_name(name).key)
            if not nodes:
                return None
            text = await self.stores.read_header(nodes[0].address, digest)
        except PunaError as error:
            log.warning("store.header_unread", model=name, reason=error.reason)
            return None
        header = await asyncio.to_thread(orjson.loads, text)  # a vocabulary is megabytes
        return header if isinstance(header, dict) else None

    async def stat_blob(self, digest: str) -> int | None:
        """Return the size of a blob that some node has.

        Raises:
            ModelUnavailable: no node can be asked.
        """
        nodes = await self._nodes()
        _found(roomiest(nodes))
        sizes = [found[digest] for found in (await self._blobs(nodes, [digest])).values() if digest in found]
        return max(sizes, default=None)

    async def put_blob(self, digest: str, content: AsyncIterable[bytes], *, size_bytes: int) -> bool:
        """Store a blob where there is most room; whether it is new.

        Raises:
            InvalidRequest: the content has another digest.
            DiskFull: it does not fit.
        """
        node = _found(roomiest(await self._nodes()))
        response = await self.stores.put_blob(node.address, digest, content, size_bytes=size_bytes)
        return not response.existed

    async def _nodes(self) -> tuple[StoreNode, ...]:
        return store_nodes(await self.scheduler.list_nodes())

    async def _blobs(self, nodes: Sequence[StoreNode], digests: Sequence[str]) -> dict[str, dict[str, int]]:
        """Map each node to the sizes of those blobs that it has. A node that does not answer has none."""

        async def on(node: StoreNode) -> dict[str, int]:
            try:
                sizes = [await self.stores.stat_blob(node.address, digest) for digest in digests]
            except ModelUnavailable:
                return {}
            return {digest: size for digest, size in zip(digests, sizes, strict=True) if size is not None}

        reachable = [node for node in nodes if not node.is_silent]
        return dict(zip((node.id for node in reachable), await asyncio.gather(*map(on, reachable)), strict=True))

    async def _bring(
        self, digest: str, nodes: Sequence[StoreNode], blobs: Mapping[str, Mapping[str, int]], target: StoreNode
    ) -> None:
        source = next(node for node in nodes if digest in blobs.get(node.id, {}))

        async def content() -> AsyncIterator[bytes]:
            async with closing(self.stores.read_blob(source.address, digest)) as chunks:
                async for chunk in chunks:
                    yield chunk.data

        await self.stores.put_blob(target.address, digest, content(), size_bytes=blobs[source.id][digest])

    async def _shown_before_the_end(
        self, steps: AsyncIterator[store_pb2.StoreProgress], node: StoreNode, name: str
    ) -> AsyncIterator[store_pb2.StoreProgress]:
        """Delay "success" until the next call finds the model."""
        async for step in steps:
            if step.status == "success":
                await self._until_shown(node, name)
            yield step

    async def _until_shown(self, node: StoreNode, name: str) -> None:
        manifest = hashlib.sha256(await self.stores.read_manifest(node.address, name)).hexdigest()
        key = parse_model_name(name).key
        await self._until(lambda found: found is not None and found.model.manifest_digest == manifest, key)

    async def _until(self, holds: Callable[[RouteInfo | None], bool], key: str) -> None:
        """Wait until a route is as the stores say; when that takes too long, another node has the word."""
        if not await self.routes.until(lambda: holds(self.routes.by_key(key)), SHOWN_WITHIN_S):
            log.warning("store.not_shown", model=key)


def store_nodes(inventory: discovery_pb2.Inventory) -> tuple[StoreNode, ...]:
    """List the nodes of an inventory as stores."""
    return tuple(
        StoreNode(
            id=node.id,
            address=node.address,
            free_bytes=node.models_free_bytes,
            is_silent=node.suspect,
            models=frozenset(_keys(model.name for model in node.models)),
        )
        for node in inventory.nodes
    )


def _keys(names: Iterable[str]) -> Iterable[str]:
    for name in names:
        try:
            yield parse_model_name(name).key
        except ModelNotFound:  # a file whose name no client can write
            continue


def _found(node: StoreNode | None) -> StoreNode:
    if node is None:
        raise ModelUnavailable(_NO_STORE, retry_after_s=1.0)
    return node


async def _on_all(calls: Iterable[object]) -> None:
    """Ask every node, and only then say what failed; one that does not have the name is no failure if another has."""
    results = await asyncio.gather(*calls, return_exceptions=True)  # type: ignore[call-overload]  # awaitables
    failures = [result for result in results if isinstance(result, BaseException)]
    grave = [failure for failure in failures if not isinstance(failure, ModelNotFound)]
    if grave:
        raise next((failure for failure in grave if not isinstance(failure, PunaError)), grave[0])
    if failures and len(failures) == len(results):
        raise failures[0]
