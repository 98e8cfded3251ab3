"""Asks a runner itself, when its host is silent."""

from common.errors import PunaError
from common.grpc.client import open_channel
from common.grpc.errors import domain_errors
from protos import runner_pb2, runner_pb2_grpc
from scheduler.core.state.effects import AskRunner

ANSWER_S_MAX = 1.0


async def is_runner_there(asked: AskRunner) -> bool:
    """Return True if the very process in question answers at its address; a successor does not count."""
    async with open_channel(asked.address) as channel:
        try:
            with domain_errors():
                info: runner_pb2.RunnerInfo = await runner_pb2_grpc.RunnerStub(channel).GetInfo(
                    runner_pb2.GetInfoRequest(), timeout=ANSWER_S_MAX
                )
        except PunaError:
            return False
    found = info.placement
    return (found.placement_id, found.generation, found.incarnation) == (
        asked.placement_id,
        asked.generation,
        asked.incarnation,
    )
