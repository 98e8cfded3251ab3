"""Scheduler of gateways under test: aliases and drains that operators set."""

from typing import Any

from grpc import aio

from common.errors import InvalidRequest, NodeNotFound
from protos import scheduler_pb2, scheduler_pb2_grpc

Context = aio.ServicerContext[Any, Any]


class ScriptedOperations(scheduler_pb2_grpc.SchedulerServicer):
    """Keeps what operators set, and publishes it to watchers of routes."""

    aliases: dict[str, str]  # name → target
    knows_aliases: bool
    drained: dict[str, int | None]  # node → budget_ms

    async def publish(self) -> None:
        raise AssertionError("not without routes")

    def alias_table(self) -> scheduler_pb2.AliasTable | None:
        if not self.knows_aliases:
            return None
        return scheduler_pb2.AliasTable(
            aliases=[scheduler_pb2.Alias(name=name, target=target) for name, target in sorted(self.aliases.items())]
        )

    async def PutAlias(  # noqa: N802
        self, request: scheduler_pb2.PutAliasRequest, context: Context
    ) -> scheduler_pb2.Alias:
        if request.alias.target in self.aliases:
            raise InvalidRequest(f'"{request.alias.target}" is itself an alias')
        self.aliases[request.alias.name] = request.alias.target
        await self.publish()
        return request.alias

    async def RemoveAlias(  # noqa: N802
        self, request: scheduler_pb2.RemoveAliasRequest, context: Context
    ) -> scheduler_pb2.RemoveAliasResponse:
        was_set = self.aliases.pop(request.name, None) is not None
        await self.publish()
        return scheduler_pb2.RemoveAliasResponse(was_set=was_set)

    async def Drain(  # noqa: N802
        self, request: scheduler_pb2.DrainRequest, context: Context
    ) -> scheduler_pb2.DrainResponse:
        if request.node_id != "node-1":
            raise NodeNotFound(f"no node is called '{request.node_id}'")
        self.drained[request.node_id] = request.budget_ms if request.HasField("budget_ms") else None
        return scheduler_pb2.DrainResponse(replicas=1)

    async def Undrain(  # noqa: N802
        self, request: scheduler_pb2.UndrainRequest, context: Context
    ) -> scheduler_pb2.UndrainResponse:
        self.drained.pop(request.node_id, None)
        return scheduler_pb2.UndrainResponse()

    async def RemoveNode(  # noqa: N802
        self, request: scheduler_pb2.RemoveNodeRequest, context: Context
    ) -> scheduler_pb2.RemoveNodeResponse:
        if request.node_id != "node-1" and not request.may_be_absent:
            raise NodeNotFound(f"no node is called '{request.node_id}'")
        return scheduler_pb2.RemoveNodeResponse(replicas=1)
