"""Constraints as operators set them, and what the scheduler says to that."""

from scheduler.core.state.effects import AnswerConstraints, AnswerFailed
from scheduler.core.state.events import ConstraintsAsked, ConstraintsPut
from scheduler.core.values.constraint_fields import parse_constraints
from tests.unit.scheduler.builders import cpu, gpu
from tests.unit.scheduler.world import World

TWO_GPUS = (gpu("gpu-0"), gpu("gpu-1"), cpu(free=4, total=4))


def told(world: World, model_name: str = "m") -> AnswerConstraints:
    world.answers.pop("asks", None)
    world.send(ConstraintsAsked(caller_id="asks", model_name=model_name))
    (answer,) = world.answers["asks"]
    assert isinstance(answer, AnswerConstraints)
    return answer


def refusal(world: World, model_name: str = "m") -> str:
    (answer,) = world.answers[f"want-{model_name}"]
    assert isinstance(answer, AnswerFailed)
    return answer.fault.message


def put(world: World, model_name: str = "m", **written: object) -> None:
    event = ConstraintsPut(
        caller_id=f"want-{model_name}", model_name=model_name, constraints=parse_constraints(written)
    )
    world.send(event)
