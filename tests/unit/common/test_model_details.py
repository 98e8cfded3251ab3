"""Long texts of models pass a stream once, and are there for whoever needs them."""

from hypothesis import given
from hypothesis import strategies as st

from common.model_details import KeptDetails, SentDetails, fit_together, name_details, without_details
from protos import cluster_pb2


def model(name: str, template: str) -> cluster_pb2.Model:
    description = cluster_pb2.ModelDescription(
        architecture="llama", chat_template=template, special_tokens=["<s>", template], metadata_json="{}"
    )
    full = cluster_pb2.Model(name=name, description=description)
    name_details(full)
    return full


def test_equal_details_have_one_name_and_others_another() -> None:
    assert model("a", "x").description.details_id == model("b", "x").description.details_id
    assert model("a", "x").description.details_id != model("a", "y").description.details_id
    broken = cluster_pb2.Model(name="c", error="cut off")
    name_details(broken)
    assert not without_details(broken).HasField("description")


def test_what_is_left_out_is_only_what_is_long() -> None:
    brief = without_details(model("a", "x"))
    assert (brief.name, brief.description.architecture) == ("a", "llama")
    assert not brief.description.chat_template
    assert not brief.description.special_tokens
    assert not brief.description.metadata_json


def test_a_message_that_never_had_them_left_out_stays_as_it_is() -> None:
    kept, plain = KeptDetails(), cluster_pb2.Model(name="a")
    plain.description.chat_template = "x"
    kept.take([plain])
    kept.complete(plain)
    assert plain.description.chat_template == "x"


STREAMS = st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz")), max_size=5), max_size=8)


@given(messages=STREAMS)
def test_the_receiver_always_has_what_the_sender_had_and_nothing_is_sent_twice_in_a_row(
    messages: list[list[tuple[str, str]]],
) -> None:
    sent, kept, before = SentDetails(), KeptDetails(), set[str]()
    for message in messages:
        full = [model(name, template) for name, template in message]
        fresh = sent.must_send(full)
        assert not fresh & before
        before = {one.description.details_id for one in full}
        wire = []
        for one in full:
            name = one.description.details_id
            carried = one if name in fresh else without_details(one)
            wire.append(cluster_pb2.Model.FromString(carried.SerializeToString()))
            fresh.discard(name)
        assert not fresh
        kept.take(wire)
        for one in wire:
            kept.complete(one)
        assert wire == full


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2000), st.integers(0, 5)), max_size=20))
def test_models_fit_together_and_no_newer_one_takes_the_room_of_an_older(
    said: list[tuple[int, int, int]],
) -> None:
    models = []
    for number, (at_s, size, content) in enumerate(said):
        models.append(model(f"m{number:02}", str(content) * size))
        models[-1].modified_at_unix_s = at_s
    found = fit_together(models, bytes_max=4000, of="this node")
    assert [one.name for one in found] == [one.name for one in models]
    kept = [one for one in found if not one.error]
    assert all(one in models for one in kept)
    assert sum(one.ByteSize() for one in kept) <= 4000
    for one in models:
        older = sum(other.ByteSize() for other in models if other.modified_at_unix_s < one.modified_at_unix_s)
        same = sum(other.ByteSize() for other in models if other.modified_at_unix_s == one.modified_at_unix_s)
        assert one in kept or older + same > 4000
