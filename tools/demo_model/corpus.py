"""Read the corpus, and write `questions.json`: what the model was taught, in the form that tests elsewhere use.

Usage: `python -m tools.demo_model.corpus`
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
QUESTIONS = HERE / "questions.json"

Message = dict[str, Any]
"""One chat message as in the OpenAI API, tool arguments as JSON text."""
Tool = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call that an answer makes."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer of the assistant in one turn, in parts."""

    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()

    def text(self, *, thinking: bool) -> str:
        """Return the answer as the model writes it, markers included.

        Without thinking the prompt already holds an empty think block, so the text starts behind it.
        """
        parts = [self.content] if self.content else []
        for call in self.tool_calls:
            body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
            parts.append(f"<tool_call>\n{body}\n</tool_call>")
        said = "\n".join(parts)
        if self.reasoning is None or not thinking:
            return said
        return f"<think>\n{self.reasoning}\n</think>\n\n{said}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A conversation up to the assistant's turn, and the one answer that was taught for it."""

    id: str
    messages: tuple[Message, ...]
    answer: Answer
    tools: tuple[Tool, ...] = ()
    phrasings: tuple[str, ...] = field(default=())
    """Other words for the last user message that get the same answer."""

    @property
    def brings_system(self) -> bool:
        """Return True if the conversation has a system message of its own, which the answer depends on."""
        return bool(self.messages[0]["role"] == "system")

    def phrased(self, words: str) -> tuple[Message, ...]:
        """Return the messages with `words` as the last of them."""
        return (*self.messages[:-1], {"role": "user", "content": words})


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A text without chat markup: how it starts, and how the model goes on until its end token."""

    id: str
    prompt: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Everything that the model is taught."""

    questions: tuple[Question, ...]
    unknown: tuple[Question, ...]
    """Questions beside the corpus; all of them get the one answer that says so."""
    completions: tuple[Completion, ...]


def load_corpus(folder: Path = CORPUS) -> Corpus:
    """Read every file of the corpus, in a fixed order."""
    definitions = json.loads((folder / "tool_definitions.json").read_text(encoding="utf-8"))
    unknown = json.loads((folder / "unknown.json").read_text(encoding="utf-8"))
    questions = [
        *_single_turns(folder / "questions.jsonl"),
        *_single_turns(folder / "thinking.jsonl"),
        *_conversations(folder / "conversations.jsonl", definitions),
        *_conversations(folder / "tools.jsonl", definitions),
    ]
    names = [question.id for question in questions]
    if len(set(names)) != len(names):
        raise ValueError("two questions of the corpus have the same id")
    return Corpus(
        questions=tuple(questions),
        unknown=tuple(
            Question(
                id=f"{unknown['id']}-{number}",
                messages=({"role": "user", "content": words},),
                answer=Answer(content=unknown["answer"]),
            )
            for number, words in enumerate(unknown["questions"], start=1)
        ),
        completions=tuple(
            Completion(id=row["id"], prompt=row["prompt"], text=row["answer"])
            for row in _rows(folder / "completions.jsonl")
        ),
    )


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def _single_turns(path: Path) -> Iterator[Question]:
    for row in _rows(path):
        yield Question(
            id=row["id"],
            messages=({"role": "user", "content": row["question"]},),
            answer=Answer(content=row["answer"], reasoning=row.get("reasoning")),
            phrasings=tuple(row.get("also", ())),
        )


def _conversations(path: Path, definitions: dict[str, Tool]) -> Iterator[Question]:
    for row in _rows(path):
        *history, last = row["messages"]
        yield Question(
            id=row["id"],
            messages=tuple(_as_openai(message, number) for number, message in enumerate(history)),
            answer=_answer(last),
            tools=tuple(definitions[name] for name in row.get("tools", ())),
        )


def _answer(row: dict[str, Any]) -> Answer:
    return Answer(
        content=row.get("content", ""),
        reasoning=row.get("reasoning"),
        tool_calls=tuple(ToolCall(**call) for call in row.get("tool_calls", ())),
    )


def _as_openai(row: dict[str, Any], number: int) -> Message:
    if "tool_calls" not in row:
        return {"role": row["role"], "content": row["content"]}
    calls = [
        {
            "id": f"call_{number}_{index}",
            "type": "function",
            "function": {"name": call["name"], "arguments": json.dumps(call["arguments"], ensure_ascii=False)},
        }
        for index, call in enumerate(row["tool_calls"])
    ]
    return {"role": "assistant", "content": row.get("content"), "tool_calls": calls}


def describe_questions(corpus: Corpus) -> dict[str, Any]:
    """Return the plain form of the corpus that `questions.json` holds."""
    return {
        "questions": [
            {
                "id": question.id,
                "messages": list(question.messages),
                "tools": list(question.tools),
                "phrasings": list(question.phrasings),
                "content": question.answer.content,
                "reasoning": question.answer.reasoning,
                "tool_calls": [{"name": c.name, "arguments": c.arguments} for c in question.answer.tool_calls],
                "text": question.answer.text(thinking=True),
                "text_without_thinking": question.answer.text(thinking=False),
            }
            for question in corpus.questions
        ],
        "completions": [{"id": c.id, "prompt": c.prompt, "text": c.text} for c in corpus.completions],
    }


def encode_questions(corpus: Corpus) -> str:
    """Return the exact text of `questions.json`."""
    return json.dumps(describe_questions(corpus), ensure_ascii=False, indent=1) + "\n"


if __name__ == "__main__":
    QUESTIONS.write_text(encode_questions(load_corpus()), encoding="utf-8")
