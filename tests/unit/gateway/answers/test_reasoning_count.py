"""Count of reasoning tokens in an answer, however its pieces are cut."""

import pytest

from gateway.answers.output import plan_output
from gateway.core.request.answers import AnswerRequest, Chat, Delta, Dialect, GeneratedToken, Message

TEMPLATE = "<think></think><tool_call>"
REASONING = ("<think>", "well", ", yes", "</think>")
CONTENT = ("Hello", " you")
CALL = ("<tool_call>", '{"name": "f",', ' "arguments": {}}', "</tool_call>")
# The marker in front counts; the one behind counts with whatever comes next.
REASONING_TOKENS = (3, 4)


@pytest.mark.parametrize("at_once", [1, 2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("rest", [CONTENT, CALL])
def test_tokens_of_reasoning_are_counted_however_many_come_at_once(rest: tuple[str, ...], at_once: int) -> None:
    chat = Chat(messages=(Message(role="user", content="x"),), tools=({"type": "function", "function": {"name": "f"}},))
    parser = plan_output(TEMPLATE, AnswerRequest(dialect=Dialect.OPENAI, model="m", prompt=chat)).parser("")
    deltas = []
    said = REASONING + rest
    for start in range(0, len(said), at_once):
        pieces = said[start : start + at_once]
        tokens = tuple(GeneratedToken(id=number, piece=piece.encode()) for number, piece in enumerate(pieces))
        deltas += parser.feed(Delta(content="".join(pieces), tokens=tokens))
    whole = Delta.joined([*deltas, *parser.finish()])
    assert (whole.reasoning, whole.content, len(whole.tool_calls) > 0) == (
        "well, yes",
        "Hello you" if rest is CONTENT else "",
        rest is CALL,
    )
    assert parser.reasoning_tokens in REASONING_TOKENS
    assert len(whole.tokens) == len(said)
