"""Requests and answers of `puna run` and `puna chat`. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from common.clock import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a request; None leaves a value to the model or the server. `options` are those of Ollama's dialect."""

    system: str | None = None
    keep_alive: str | None = None
    think: bool | str | None = None
    answer_format: Any = None  # "json" or a JSON schema
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One turn. `images` are base64."""

    role: str
    content: str
    images: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """As the API takes it."""
        images = {"images": list(self.images)} if self.images else {}
        return {"role": self.role, "content": self.content, **images}


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """The turns so far."""

    messages: tuple[ChatMessage, ...] = field(default=())

    def asked(self, question: str, images: Sequence[str] = ()) -> "Conversation":
        """With a question of the user at the end."""
        return Conversation(messages=(*self.messages, ChatMessage(role="user", content=question, images=tuple(images))))

    def answered(self, answer: str) -> "Conversation":
        """With the model's answer at the end."""
        return Conversation(messages=(*self.messages, ChatMessage(role="assistant", content=answer)))


@dataclass(slots=True)
class ChatAnswer:
    """One answer, piece by piece."""

    content: list[str] = field(default_factory=list)
    thinking: list[str] = field(default_factory=list)
    last: Mapping[str, Any] | None = None  # the object that ended it

    def add_chunk(self, chunk: Mapping[str, Any]) -> tuple[str, str]:
        """Add an object of the stream; its thinking and its content."""
        message = chunk.get("message") or {}
        thinking, content = str(message.get("thinking") or ""), str(message.get("content") or "")
        self.thinking.append(thinking)
        self.content.append(content)
        self.last = chunk if chunk.get("done") else None
        return thinking, content

    @property
    def text(self) -> str:
        """The answer's text, without its reasoning."""
        return "".join(self.content)

    def whole(self) -> dict[str, Any]:
        """Return the object that POST /api/chat answers with `stream` false."""
        assert self.last is not None  # asked for after the end only
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if thinking := "".join(self.thinking):
            message["thinking"] = thinking
        return {**self.last, "message": message}


def join_question(arguments: Sequence[str], parts: Sequence[str]) -> str | None:
    """Join the question of a single run: piped input and files, then the words; None starts a dialogue.

    Raises:
        ValueError: something was piped or read, but nothing is in it.
    """
    words = " ".join(arguments).strip()
    if not parts:
        return words or None
    question = "\n\n".join(part for part in (*(part.strip() for part in parts), words) if part)
    if not question:
        raise ValueError("there is no question on standard input")
    return question


def chat_body(model: str, conversation: Conversation, options: RunOptions) -> dict[str, Any]:
    """Return the body of POST /api/chat."""
    system = [{"role": "system", "content": options.system}] if options.system else []
    turns = [message.as_json() for message in conversation.messages]
    body: dict[str, Any] = {"model": model, "messages": [*system, *turns], "stream": True}
    if options.options:
        body["options"] = dict(options.options)
    if options.keep_alive is not None:
        body["keep_alive"] = number_if_one(options.keep_alive)
    if options.think is not None:
        body["think"] = options.think
    if options.answer_format is not None:
        body["format"] = options.answer_format
    return body


def timing_line(last: Mapping[str, Any]) -> str:
    """Format the figures of the last object: "23 tokens, 812.4 tokens/s, prompt 9 tokens, load 0.2 s, total 0.3 s"."""
    count, duration_ns = last.get("eval_count") or 0, last.get("eval_duration") or 0
    speed = f"{count / duration_ns * NS_PER_S:.1f} tokens/s" if duration_ns else "speed not measured"
    load_s, total_s = (last.get("load_duration") or 0) / 1e9, (last.get("total_duration") or 0) / 1e9
    prompt, cached = last.get("prompt_eval_count") or 0, last.get("prompt_cached_count") or 0
    of_cache = f" ({cached} cached)" if cached else ""
    return f"{count} tokens, {speed}, prompt {prompt} tokens{of_cache}, load {load_s:.2f} s, total {total_s:.2f} s"


def number_if_one(text: str) -> str | float:
    """Seconds are numbers in the API, "10m" is a text."""
    try:
        number = float(text)
    except ValueError:
        return text
    return number if isfinite(number) else text  # JSON has no nan
