"""Conversations in a form that narrower chat templates take."""

from gateway.core.prepare.turns import (
    has_later_system,
    with_folded_system,
    with_questions_in_results,
    with_system_first,
)
from gateway.core.request.answers import Message, ToolCall
from gateway.core.request.images import PlacedImage, RequestImage


def system(text: str) -> Message:
    return Message(role="system", content=text)


def user(text: str) -> Message:
    return Message(role="user", content=text)


ANSWER = Message(role="assistant", content="yes")
CALL = Message(role="assistant", tool_calls=(ToolCall(name="f", arguments={}, id="1"),))
RESULT = Message(role="tool", content="42", tool_call_id="1")
REMINDER = "<system-reminder>\nbe brief\n</system-reminder>"


def test_only_a_system_message_behind_the_first_message_is_a_later_one() -> None:
    assert not has_later_system((system("a"), user("b"), ANSWER))
    assert has_later_system((system("a"), system("b"), user("c")))
    assert has_later_system((user("a"), system("b")))


def test_system_messages_before_the_first_answer_are_one_at_the_head() -> None:
    messages = (system("a"), user("q"), system("b"), ANSWER, user("more"), system("c"))
    assert with_system_first(messages) == (system("a\n\nb"), user("q"), ANSWER, user("more"), system("c"))
    assert with_system_first((user("q"), system("a"))) == (system("a"), user("q"))
    assert with_system_first((user("q"), ANSWER)) == (user("q"), ANSWER)


def test_a_later_system_message_is_marked_text_of_the_turn_before_it() -> None:
    start = (system("a"), user("q"), ANSWER)
    assert with_folded_system((*start, user("more"), system("be brief"))) == (*start, user(f"more\n\n{REMINDER}"))
    called = (system("a"), user("q"), CALL, RESULT)
    folded = with_folded_system((*called, system("be brief")))
    assert folded[:3] == called[:3]
    assert (folded[3].role, folded[3].content, folded[3].tool_call_id) == ("tool", f"42\n\n{REMINDER}", "1")


def test_behind_an_answer_it_begins_the_next_question() -> None:
    start = (user("q"), ANSWER)
    assert with_folded_system((*start, system("be brief"))) == (*start, user(REMINDER))
    assert with_folded_system((*start, system("be brief"), user("more"))) == (*start, user(f"{REMINDER}\n\nmore"))


def test_a_system_message_that_is_added_changes_no_turn_before_it() -> None:
    turns = (system("a"), user("q"), system("list"), CALL, RESULT, system("be brief"), ANSWER, user("more"))
    before = with_folded_system(turns)
    after = with_folded_system((*turns, system("now")))
    assert after[: len(before) - 1] == before[:-1]
    assert after[-1].content.startswith(before[-1].content)


def test_images_keep_their_places_in_a_turn_that_is_joined() -> None:
    picture = PlacedImage(image=RequestImage("x"), offset=1)
    question = Message(role="user", content="ab", images=(picture,))
    (*_, joined) = with_folded_system((user("q"), ANSWER, system("be brief"), question))
    (image,) = joined.images
    assert joined.content[image.offset - 1 : image.offset + 1] == "ab"


def test_a_question_behind_a_result_joins_it() -> None:
    assert with_questions_in_results((user("q"), CALL, RESULT, user("and?"))) == (
        user("q"),
        CALL,
        Message(role="tool", content="42\n\nand?", tool_call_id="1"),
    )
    assert with_questions_in_results((user("q"), ANSWER, user("and?"))) == (user("q"), ANSWER, user("and?"))
