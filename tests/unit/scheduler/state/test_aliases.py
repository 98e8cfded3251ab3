"""Second names of models: what is refused, what counts when, and what gateways hear."""

from collections.abc import Sequence

from scheduler.core.state.effects import AnswerAlias, AnswerFailed, Effect, PublishRoutes, SaveAlias
from scheduler.core.state.events import AliasesRead, AliasPut, InventorySeen, LeadershipLost
from scheduler.core.values.faults import STALE_FENCE, Fault, store_unreachable
from scheduler.core.values.routing_table import ModelAlias
from tests.unit.scheduler.builders import node
from tests.unit.scheduler.world import World, models, world_with

FAST = ModelAlias(name="fast:latest", target="m:latest")


def some_world() -> World:
    return world_with(node("a", models=models("m", "other")), m=8, other=3)


def published(world: World) -> tuple[ModelAlias, ...] | None:
    """Return the aliases that a gateway would receive on connecting now."""
    return world.core.state.routes_aliases


def lose_store(world: World) -> None:
    """It is empty, and knows nothing of having held anything."""
    world.stored_aliases = None


def refusal(effects: Sequence[Effect]) -> Fault:
    (answer,) = effects
    assert isinstance(answer, AnswerFailed)
    return answer.fault


def test_an_alias_counts_once_it_is_written_down() -> None:
    world = some_world()
    world.send(AliasPut(caller_id="operator", name="Fast", target="m"))
    assert published(world) == ()
    assert world.answers.get("operator", []) == []
    world.writes_done()
    assert published(world) == (ModelAlias(name="Fast:latest", target="m:latest"),)
    assert world.answers["operator"] == [
        AnswerAlias(caller_id="operator", alias=ModelAlias(name="Fast:latest", target="m:latest"), was_set=False)
    ]


def test_an_alias_that_is_set_again_points_elsewhere_and_every_spelling_means_it() -> None:
    world = some_world()
    world.alias("fast", "m")
    (answer,) = world.alias("FAST:latest", "other")
    assert isinstance(answer, AnswerAlias)
    assert answer.was_set
    assert published(world) == (ModelAlias(name="FAST:latest", target="other:latest"),)
    assert world.alias("Fast", None) == [AnswerAlias(caller_id="operator", alias=None, was_set=True)]
    assert published(world) == ()
    assert world.alias("fast", None) == [AnswerAlias(caller_id="operator", alias=None, was_set=False)]


def test_loops_chains_and_unknown_models_are_refused_with_the_reason() -> None:
    world = some_world()
    assert "itself" in refusal(world.alias("m", "M:latest")).message
    assert refusal(world.alias("fast", "nowhere")).reason == "model_not_found"
    world.alias("fast", "m")
    assert 'is itself an alias, of "m:latest"' in refusal(world.alias("faster", "fast")).message
    assert 'the alias "fast:latest" points to "m"' in refusal(world.alias("m", "other")).message
    assert published(world) == (FAST,)


def test_two_commands_at_once_do_not_make_a_loop() -> None:
    world = some_world()
    world.send(AliasPut(caller_id="one", name="m", target="other"))
    world.send(AliasPut(caller_id="two", name="other", target="m"))
    world.writes_done()
    assert published(world) == (ModelAlias(name="m:latest", target="other:latest"),)
    assert (
        "points to" in refusal(world.answers["two"]).message
        or "itself an alias" in refusal(world.answers["two"]).message
    )


def test_nothing_has_changed_when_it_cannot_be_written_down() -> None:
    world = some_world()
    world.send(AliasPut(caller_id="operator", name="fast", target="m"))
    world.writes_fail(Fault(reason=STALE_FENCE, message="another leads"))
    assert refusal(world.answers["operator"]).reason == STALE_FENCE
    assert published(world) == ()
    assert isinstance(world.alias("m", "other")[0], AnswerAlias)  # what failed stands in nobody's way


def test_without_a_leader_aliases_are_refused_and_those_that_there_are_stay_known() -> None:
    world = some_world()
    world.alias("fast", "m")
    world.lose_leadership()
    world.send(AliasPut(caller_id="operator", name="other-one", target="m"))
    assert published(world) == (FAST,)


def test_the_next_leader_and_standbys_take_the_word_of_the_store() -> None:
    world = some_world()
    world.alias("fast", "m")
    world.lose_leadership()
    world.send(AliasesRead({}))
    assert published(world) == ()
    world.stored_aliases = {"fast:latest": FAST}
    world.lead()
    assert published(world) == (FAST,)


def test_a_store_that_has_lost_everything_is_told_again_and_an_empty_one_is_believed() -> None:
    world = some_world()
    world.alias("fast", "m")
    lose_store(world)
    world.lose_leadership()
    world.lead()
    assert [one for one in world.writes if isinstance(one, SaveAlias)] != []
    world.writes_done()
    assert world.stored_aliases == {"fast:latest": FAST}
    world.lose_leadership()
    world.stored_aliases = {}
    world.lead()
    assert published(world) == ()


def test_a_scheduler_that_has_not_read_them_says_so() -> None:
    world = World(nodes={})
    effects = world.core.handle(LeadershipLost(fault=store_unreachable("no store")), 1.0)
    effects += world.core.handle(InventorySeen(nodes=(), uptime_s=60.0), 2.0)
    (table,) = [one for one in effects if isinstance(one, PublishRoutes)]
    assert table.aliases is None
