"""Estimates of the tokens of a request."""

from gateway.core.prepare.estimates import answer_tokens, prompt_tokens, question_tokens
from gateway.core.prepare.vectors import EmbedQuestion, RerankQuestion
from gateway.core.request.answers import AnswerRequest, Chat, Dialect, Message, RawPrompt
from gateway.core.request.images import RequestImage, before_text

ONE = RequestImage("eA==")


def request(prompt: Chat | RawPrompt, num_predict: int | None = None) -> AnswerRequest:
    options = {} if num_predict is None else {"num_predict": num_predict}
    return AnswerRequest(dialect=Dialect.GRPC, model="demo", prompt=prompt, options=options)


def test_prompt_and_longest_answer_count() -> None:
    chat = Chat(messages=(Message(role="system", content="x" * 40), Message(role="user", content="y" * 41)))
    assert answer_tokens(request(chat, 100)) == 21 + 100
    assert answer_tokens(request(RawPrompt(token_ids=(1, 2, 3)), 7)) == 10


def test_an_answer_without_a_limit_counts_as_a_usual_one() -> None:
    assert answer_tokens(request(RawPrompt(text="abcd"))) == answer_tokens(request(RawPrompt(text="abcd"), -1)) == 513


def test_vectors_count_what_is_read() -> None:
    embed = EmbedQuestion(dialect=Dialect.GRPC, model="m", inputs=("x" * 8, (1, 2, 3)), truncate=True)
    assert question_tokens(embed) == 5
    rerank = RerankQuestion(dialect=Dialect.GRPC, model="m", query="q" * 4, documents=("d" * 8, "d"), truncate=True)
    assert question_tokens(rerank) == (1 + 2) + (1 + 1)


def test_everything_that_is_read_counts() -> None:
    bare = Chat(messages=(Message(role="user", content="x" * 40),))
    thought = Chat(messages=(Message(role="assistant", content="x" * 40, thinking="y" * 80),))
    tools = Chat(messages=bare.messages, tools=({"name": "z" * 400},))
    assert prompt_tokens(request(bare)) == 10
    assert prompt_tokens(request(thought)) == 30
    assert prompt_tokens(request(tools)) > 110
    assert prompt_tokens(request(Chat(messages=bare.messages, earlier_token_ids=(1, 2, 3)))) == 13


def test_an_image_counts_as_more_than_a_few_words() -> None:
    seen = before_text([ONE, ONE])
    assert prompt_tokens(request(RawPrompt(text="x" * 4, images=seen))) == 513
    assert prompt_tokens(request(Chat(messages=(Message(role="user", content="x" * 4, images=seen),)))) == 513
