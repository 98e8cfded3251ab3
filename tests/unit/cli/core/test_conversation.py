import pytest

from cli.core.conversation import Conversation, RunOptions, chat_body, join_question, timing_line


def test_words_of_the_command_line_make_one_question() -> None:
    assert join_question(["What", "is", "Puna?"], []) == "What is Puna?"


def test_what_is_piped_in_comes_before_the_question() -> None:
    assert join_question(["Summarise this."], ["a text\n"]) == "a text\n\nSummarise this."


def test_what_is_piped_in_can_be_the_question() -> None:
    assert join_question([], ["What is Puna?\n"]) == "What is Puna?"


def test_no_question_and_no_pipe_starts_a_dialogue() -> None:
    assert join_question([], []) is None


def test_an_empty_pipe_without_a_question_is_refused() -> None:
    with pytest.raises(ValueError, match="no question"):
        join_question([], [" \n"])


def test_the_body_holds_the_dialogue_in_order_with_the_system_message_first() -> None:
    conversation = Conversation().asked("one").answered("two").asked("three")

    body = chat_body("demo", conversation, RunOptions(system="be short"))

    assert body == {
        "model": "demo",
        "messages": [
            {"role": "system", "content": "be short"},
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "two"},
            {"role": "user", "content": "three"},
        ],
        "stream": True,
    }


def test_only_options_that_were_set_are_sent() -> None:
    body = chat_body(
        "demo", Conversation().asked("q"), RunOptions(options={"temperature": 0.0, "num_predict": 5}, think=False)
    )

    assert body["options"] == {"temperature": 0.0, "num_predict": 5}
    assert body["think"] is False
    assert "keep_alive" not in body


def test_keep_alive_is_a_number_of_seconds_or_a_duration() -> None:
    assert chat_body("demo", Conversation(), RunOptions(keep_alive="-1"))["keep_alive"] == -1
    assert chat_body("demo", Conversation(), RunOptions(keep_alive="10m"))["keep_alive"] == "10m"
    assert chat_body("demo", Conversation(), RunOptions(keep_alive="nan"))["keep_alive"] == "nan", "the server says why"


def test_the_timing_line_does_not_invent_a_speed() -> None:
    assert timing_line({"eval_count": 1, "eval_duration": 0}).startswith("1 tokens, speed not measured")
    assert timing_line({"eval_count": 20, "eval_duration": 10**8}).startswith("20 tokens, 200.0 tokens/s")
