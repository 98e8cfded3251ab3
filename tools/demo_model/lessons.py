"""Turn the corpus into token sequences: each epoch meets every question, differently framed."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from tools.demo_model.chat import END_OF_TURN, ChatTemplate
from tools.demo_model.corpus import Corpus, Message, Question, Tool
from tools.demo_model.tokenizer import END_OF_TEXT, encode

NEUTRAL_SYSTEMS: tuple[str | None, ...] = (None, "You are a helpful assistant.", "You are the demo model of Puna.")
"""System prompts that change no answer."""
UNKNOWN_PER_EPOCH = 24
HISTORY_CHANCE = 0.6
HISTORY_QUESTIONS_MAX = 3
THINKING_OFF_CHANCE = 0.35


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One sequence; `taught[i]` says whether token i is to be predicted from those before it."""

    tokens: tuple[int, ...]
    taught: tuple[bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Framing:
    """Framing of a question: the text before it, and whether the model may think."""

    system: str | None = None
    history: tuple[Message, ...] = ()
    thinking: bool = True
    words: str | None = None
    """Another phrasing of the last message."""


def frame(question: Question, framing: Framing) -> list[Message]:
    """Return the messages of a framed question."""
    asked = question.messages if framing.words is None else question.phrased(framing.words)
    head: list[Message] = [] if framing.system is None else [{"role": "system", "content": framing.system}]
    return [*head, *framing.history, *asked]


def questions_for_history(corpus: Corpus) -> list[Question]:
    """Return the questions that may precede any other: the answer depends on nothing, and shows all of itself."""
    asked_with_tools = {q.messages[0]["content"] for q in corpus.questions if q.answer.tool_calls}
    return [
        question
        for question in corpus.questions
        if len(question.messages) == 1
        and question.answer.reasoning is None
        and not question.tools
        and question.messages[0]["content"] not in asked_with_tools
    ]


class LessonMaker:
    """Makes the lessons of each epoch; the random generator is the caller's."""

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, template: ChatTemplate, source: random.Random) -> None:
        self._corpus = corpus
        self._tokenizer = tokenizer
        self._template = template
        self._source = source
        self._history = questions_for_history(corpus)

    def epoch(self) -> Iterator[Lesson]:
        """Yield every question in each phrasing, some questions beside the corpus, and every completion."""
        for question in (*self._corpus.questions, *self._source.sample(self._corpus.unknown, UNKNOWN_PER_EPOCH)):
            for words in (None, *question.phrasings):
                yield self._lesson(question, words)
        for completion in self._corpus.completions:
            yield self._encode([(completion.prompt, False), (completion.text + END_OF_TEXT, True)])

    def _lesson(self, question: Question, words: str | None) -> Lesson:
        source = self._source
        framing = Framing(
            system=None if question.brings_system else source.choice(NEUTRAL_SYSTEMS),
            history=() if question.brings_system else self._some_history(),
            thinking=source.random() >= THINKING_OFF_CHANCE,
            words=words,
        )
        tools = [shuffle_keys(tool, source) for tool in question.tools]
        source.shuffle(tools)
        messages = frame(question, framing)
        prompt = self._template.render(messages, tools=tools, thinking=framing.thinking)
        answer = question.answer.text(thinking=framing.thinking) + END_OF_TURN
        return self._encode([*self._taught_history(prompt, messages, tools), (answer, True)])

    def _taught_history(
        self, prompt: str, messages: list[Message], tools: Sequence[Tool]
    ) -> Iterator[tuple[str, bool]]:
        """Split a prompt where it shows an earlier answer just as the model would have to give it."""
        done = 0
        for index, message in enumerate(messages):
            if message["role"] != "assistant" or not self._may_teach(message, messages[:index]):
                continue
            before = self._template.render(messages[:index], tools=tools)
            after = self._template.render(messages[: index + 1], tools=tools)
            stop = after.index(END_OF_TURN, len(before)) + len(END_OF_TURN)
            if prompt.startswith(after[:stop]):
                yield prompt[done : len(before)], False
                yield prompt[len(before) : stop], True
                done = stop
        yield prompt[done:], False

    def _may_teach(self, message: Message, before: list[Message]) -> bool:
        """Tell whether an earlier answer is complete: one that was thought over lacks its thoughts."""
        if message.get("tool_calls"):
            asked = before[-1]["content"]
            return not any(q.answer.reasoning for q in self._corpus.questions if q.messages[-1]["content"] == asked)
        return True

    def _some_history(self) -> tuple[Message, ...]:
        if self._source.random() >= HISTORY_CHANCE:
            return ()
        history: list[Message] = []
        for question in self._source.sample(self._history, self._source.randint(1, HISTORY_QUESTIONS_MAX)):
            words = self._source.choice((None, *question.phrasings))
            history += question.messages if words is None else question.phrased(words)
            history.append({"role": "assistant", "content": question.answer.content})
        return tuple(history)

    def _encode(self, parts: Sequence[tuple[str, bool]]) -> Lesson:
        tokens: list[int] = []
        taught: list[bool] = []
        for text, is_taught in parts:
            ids = encode(self._tokenizer, text)
            tokens += ids
            taught += [is_taught] * len(ids)
        return Lesson(tokens=tuple(tokens), taught=tuple(taught))


def shuffle_keys(value: Any, source: random.Random) -> Any:
    """Return JSON with its object keys in another order: clients and servers sort tool definitions as they like."""
    if isinstance(value, dict):
        keys = list(value)
        source.shuffle(keys)
        return {key: shuffle_keys(value[key], source) for key in keys}
    if isinstance(value, list):
        return [shuffle_keys(item, source) for item in value]
    return json.loads(json.dumps(value))
