import json

import pytest

from cli.core.conversation import ChatAnswer, Conversation, RunOptions, chat_body
from cli.core.dialogue import (
    Command,
    Interrupts,
    Question,
    changed,
    command_of,
    from_text,
    is_file_name,
    model_body,
    setting_rows,
    split_setting,
    switch,
    to_text,
)


def test_a_line_is_a_question() -> None:
    assert Question().add_line("  What is Puna? ") == "What is Puna?"


def test_three_quotes_hold_several_lines_together() -> None:
    question = Question()

    assert question.add_line('"""one') is None
    assert question.is_open
    assert question.add_line("/bye") is None
    assert question.add_line('  two"""') == "one\n/bye\n  two"
    assert not question.is_open


def test_quotes_may_stand_alone_or_on_one_line() -> None:
    question = Question()

    assert question.add_line('"""') is None
    assert question.add_line("one") is None
    assert question.add_line('"""') == "one"
    assert question.add_line('"""short"""') == "short"


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("/bye", Command(name="bye")),
        ("/set temperature 0", Command(name="set", rest="temperature 0")),
        ("/?", Command(name="?")),
        ("/HELP", Command(name="help")),
        ("/etc/passwd has what in it?", None),
        ("hello", None),
        ("/", None),
    ],
)
def test_commands_begin_with_a_slash_and_a_word(line: str, command: Command | None) -> None:
    assert command_of(line) == command


def test_the_second_ctrl_c_at_the_prompt_ends_the_dialogue() -> None:
    interrupts = Interrupts()

    assert not interrupts.at_prompt()
    assert interrupts.at_prompt()


def test_ctrl_c_that_stopped_an_answer_is_the_first() -> None:
    interrupts = Interrupts()
    interrupts.stopped_answer()

    assert interrupts.at_prompt()


def test_a_line_in_between_begins_anew() -> None:
    interrupts = Interrupts()
    interrupts.at_prompt()
    interrupts.typed()

    assert not interrupts.at_prompt()


def test_settings_are_set_and_forgotten() -> None:
    options = RunOptions()
    for rest in (
        "temperature 0.5",
        "parameter top_k 3",
        "system Be short.",
        "think high",
        "keep_alive 10m",
        "stop END",
    ):
        options = changed(options, *split_setting(rest))

    assert options.options == {"temperature": 0.5, "top_k": 3, "stop": ["END"]}
    assert (options.system, options.think, options.keep_alive) == ("Be short.", "high", "10m")

    for name in ("temperature", "system", "think"):
        options = changed(options, *split_setting(name))
    assert options.options == {"top_k": 3, "stop": ["END"]}
    assert (options.system, options.think) == (None, None)


@pytest.mark.parametrize("rest", ["colour blue", "temperature warm", "think perhaps", "top_k 1.5"])
def test_what_is_no_setting_is_refused(rest: str) -> None:
    with pytest.raises(ValueError, match=rest.partition(" ")[0]):
        changed(RunOptions(), *split_setting(rest))


def test_switches_are_on_or_off() -> None:
    assert switch("verbose", "ON") is True
    assert switch("verbose", "off") is False
    with pytest.raises(ValueError, match="verbose is on or off"):
        switch("verbose", "loud")


def test_only_what_is_set_is_shown() -> None:
    options = RunOptions(system="two\nlines", answer_format={"type": "object"}, options={"seed": 1})

    assert list(setting_rows("demo", options, verbose=False)) == [
        ("model", "demo"),
        ("system", "two lines"),
        ("format", "schema"),
        ("seed", "1"),
    ]


def test_a_dialogue_comes_back_from_its_file() -> None:
    conversation = Conversation().asked("What is this?", ["aW1n"]).answered("A cat.")
    options = RunOptions(system="s", think=False, answer_format="json", options={"seed": 1}, keep_alive="1m")

    assert from_text(to_text("demo", conversation, options)) == ("demo", conversation, options)


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "[]",
        "{}",
        '{"model": 1}',
        '{"model": "m", "options": []}',
        '{"model": "m", "messages": [{"role": "tool", "content": "x"}]}',
        '{"model": "m", "messages": [{"role": "user"}]}',
        '{"model": "m", "messages": ["x"]}',
    ],
)
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        from_text(text)


def test_a_name_with_json_at_its_end_is_a_file() -> None:
    assert is_file_name("talk.json")
    assert not is_file_name("me/talk:json")


def test_a_model_that_goes_on_from_here_has_everything() -> None:
    body = model_body("mine", "demo", Conversation().asked("q").answered("a"), RunOptions(options={"seed": 1}))

    assert body == {
        "model": "mine",
        "from": "demo",
        "parameters": {"seed": 1},
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
    }


def test_format_and_images_are_sent() -> None:
    body = chat_body("demo", Conversation().asked("q", ["aW1n"]), RunOptions(answer_format="json"))

    assert body["format"] == "json"
    assert body["messages"] == [{"role": "user", "content": "q", "images": ["aW1n"]}]


def test_a_whole_answer_is_one_object() -> None:
    answer = ChatAnswer()
    answer.add_chunk({"message": {"thinking": "hm"}, "done": False})
    answer.add_chunk({"message": {"content": "yes"}, "done": False})
    assert answer.last is None
    answer.add_chunk({"message": {"content": "."}, "done": True, "eval_count": 2})

    assert json.loads(json.dumps(answer.whole())) == {
        "message": {"role": "assistant", "content": "yes.", "thinking": "hm"},
        "done": True,
        "eval_count": 2,
    }
