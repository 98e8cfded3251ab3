"""A watcher of changes knows what a watcher of everything knows, and is sent less."""

import random

from common.model_details import KeptDetails
from common.seen_inventory import Laid, SeenInventory
from discovery.converters import to_report
from discovery.core.membership import Membership, apply_disconnect, apply_report, apply_time
from discovery.servicer import Sending
from protos import cluster_pb2, discovery_pb2


def report(name: str, *, free: int, models: tuple[str, ...] | None = ()) -> discovery_pb2.HostReport:
    message = discovery_pb2.HostReport(node_id=name, incarnation="x", started_at_unix_ms=1)
    message.facts.address = f"{name}:1"
    message.devices.devices.add(id="cpu", free_bytes=free)
    message.runners.SetInParent()
    if models is not None:
        message.models.SetInParent()
        for one in models:
            message.models.models.add(name=one, digest=f"d-{one}").description.chat_template = f"template of {one}"
    return message


class Watched:
    """A membership and one watcher of its changes."""

    def __init__(self) -> None:
        self.membership = Membership()
        self.now_s = 100.0
        self.sent: discovery_pb2.Inventory | None = None
        self._laid = Laid()
        self._sending = Sending(changes_only=True, started_at_s=0.0)

    def say(self, message: discovery_pb2.HostReport, stream: int = 1) -> None:
        self.membership = apply_report(
            self.membership, to_report(message, stream=stream, wall_unix_s=1.0), now_s=self.now_s
        )

    def look(self) -> SeenInventory:
        self.sent = self._sending.next(self.membership, self.now_s)
        over_the_wire = discovery_pb2.Inventory.FromString(self.sent.SerializeToString())
        return self._laid.take(over_the_wire)

    def names(self) -> list[str]:
        """Of the nodes that were sent last."""
        assert self.sent is not None
        return [node.id for node in self.sent.nodes]


def test_a_node_that_has_not_reported_is_left_out_and_stays_the_same_object() -> None:
    watched = Watched()
    watched.say(report("a", free=1, models=("m",)))
    watched.say(report("b", free=1), stream=2)
    first = watched.look()
    watched.now_s += 0.5
    watched.say(report("b", free=2, models=None), stream=2)
    second = watched.look()
    assert watched.names() == ["b"]
    assert second.nodes[0] is first.nodes[0]
    assert second.nodes[1].devices[0].free_bytes == 2


def test_models_come_again_only_when_they_are_others() -> None:
    watched = Watched()
    watched.say(report("a", free=1, models=("m", "n")))
    first = watched.look()
    watched.say(report("a", free=2, models=None))
    second = watched.look()
    assert watched.sent is not None
    assert not watched.sent.nodes[0].models
    assert [model.name for model in second.nodes[0].models] == ["m", "n"]
    assert second.models_changes == first.models_changes
    watched.say(report("a", free=2, models=("m",)))
    third = watched.look()
    assert [model.name for model in third.nodes[0].models] == ["m"]
    assert third.models_changes > second.models_changes


def test_what_is_long_about_a_model_is_kept_though_it_comes_once() -> None:
    watched, details = Watched(), KeptDetails()
    watched.say(report("a", free=1, models=("m",)))
    details.take(model for node in watched.look().nodes for model in node.models)
    watched.say(report("b", free=1, models=("m",)), stream=2)
    seen = watched.look()
    details.take(model for node in seen.nodes for model in node.models)
    model = cluster_pb2.Model()
    model.CopyFrom(seen.nodes[1].models[0])
    brief = model.description.chat_template
    details.complete(model)
    assert (brief, model.description.chat_template) == ("", "template of m")


def test_whoever_begins_anew_compares_no_versions_with_what_was_before() -> None:
    laid = Laid()
    node = cluster_pb2.Node(id="a", models_version=1, models=[cluster_pb2.Model(name="m")])
    first = laid.take(discovery_pb2.Inventory(nodes=[node]))
    other = cluster_pb2.Node(id="a", models_version=1, models=[cluster_pb2.Model(name="n")])
    second = laid.take(discovery_pb2.Inventory(nodes=[other]))
    assert second.epoch > first.epoch
    assert [model.name for model in second.nodes[0].models] == ["n"]


def test_over_a_thousand_random_steps_changes_add_up_to_everything() -> None:
    chance, watched = random.Random(4), Watched()
    for stream in range(1000):
        name = f"n{chance.randrange(6)}"
        watched.now_s += chance.choice([0.0, 0.3, 3.0])
        match chance.randrange(8):
            case 0:
                known = watched.membership.nodes.get(name)
                if known is not None:
                    watched.membership = apply_disconnect(watched.membership, node_id=name, stream=known.stream)
            case 1:
                watched.membership = apply_time(watched.membership, now_s=watched.now_s, silence_s_max=2.0)
            case 2 | 3 | 4 if name in watched.membership.nodes:
                own = watched.membership.nodes[name].stream
                watched.say(report(name, free=chance.randrange(9), models=None), stream=own)
            case _:
                models = tuple(chance.sample(["m", "n", "o"], k=chance.randrange(4)))
                watched.say(report(name, free=chance.randrange(9), models=models), stream=stream + 1)
        if chance.random() < 0.6:
            seen = {node.id: node for node in watched.look().nodes}
            whole = Sending(changes_only=False, started_at_s=0.0).next(watched.membership, watched.now_s)
            assert seen.keys() == {node.id for node in whole.nodes}
            for node in whole.nodes:
                mine = seen[node.id]
                assert mine.devices == node.devices
                assert mine.suspect == node.suspect
                assert [model.name for model in mine.models] == [model.name for model in node.models]
