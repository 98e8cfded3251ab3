"""Count of reasoning tokens in an answer, however its pieces are cut."""

import pytest

from gateway.answers.output import plan_output
from gateway.core.request.answers import AnswerRequest, Chat, Delta, Dialect, GeneratedToken, Message

TEMPLATE = "<think></think><tool_call>"
PIECES = ("<think>", "well", ", yes", "</think>", "Hello", " you")
# The marker in front counts; the one behind counts with whatever comes next.
REASONING_TOKENS = (3, 4)


@pytest.mark.parametrize("at_once", [1, 2, 3, 4, 5, 6])
def test_tokens_of_reasoning_are_counted_however_many_come_at_once(at_once: int) -> None:
    chat = Chat(messages=(Message(role="user", content="x"),))
    parser = plan_output(TEMPLATE, AnswerRequest(dialect=Dialect.OPENAI, model="m", prompt=chat)).parser("")
    deltas = []
    for start in range(0, len(PIECES), at_once):
        pieces = PIECES[start : start + at_once]
        tokens = tuple(GeneratedToken(id=number, piece=piece.encode()) for number, piece in enumerate(pieces))
        deltas += parser.feed(Delta(content="".join(pieces), tokens=tokens))
    whole = Delta.joined([*deltas, *parser.finish()])
    assert (whole.reasoning, whole.content) == ("well, yes", "Hello you")
    assert parser.reasoning_tokens in REASONING_TOKENS
    assert len(whole.tokens) == len(PIECES)
