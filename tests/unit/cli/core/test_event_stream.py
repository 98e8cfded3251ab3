from cli.core.cluster_view import event_objects


def test_events_have_names_and_data() -> None:
    lines = ["event: snapshot", 'data: {"a": 1}', "", "event: change", 'data: {"b": 2}', ""]

    assert list(event_objects(lines)) == [("snapshot", '{"a": 1}'), ("change", '{"b": 2}')]


def test_an_event_without_a_name_is_a_message_and_data_may_have_several_lines() -> None:
    assert list(event_objects(["data: one", "data:two", ""])) == [("message", "one\ntwo")]


def test_comments_and_events_without_data_say_nothing() -> None:
    assert list(event_objects([": quiet", "", "event: end", "", "data: x", ""])) == [("message", "x")]


def test_an_event_that_is_cut_is_none() -> None:
    assert list(event_objects(["event: change", "data: {"])) == []
