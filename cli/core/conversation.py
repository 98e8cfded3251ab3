"""What `puna run` sends. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from common.clock import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the user set; what is None is the model's or the server's choice."""

    system: str | None = None
    temperature: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    keep_alive: str | None = None
    think: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """The turns so far."""

    messages: tuple[Message, ...] = field(default=())

    def asked(self, question: str) -> "Conversation":
        """With a question of the user at the end."""
        return Conversation(messages=(*self.messages, Message(role="user", content=question)))

    def answered(self, answer: str) -> "Conversation":
        """With the model's answer at the end."""
        return Conversation(messages=(*self.messages, Message(role="assistant", content=answer)))


def join_question(arguments: Sequence[str], piped: str | None) -> str | None:
    """The question of a single run: what was piped in, then the words of the command line; None starts a dialogue.

    Raises:
        ValueError: something was piped, but nothing is in it.
    """
    words = " ".join(arguments).strip()
    if piped is None:
        return words or None
    question = "\n\n".join(part for part in (piped.strip(), words) if part)
    if not question:
        raise ValueError("there is no question on standard input")
    return question


def chat_body(model: str, conversation: Conversation, options: RunOptions) -> dict[str, Any]:
    """The body of POST /api/chat."""
    system = [{"role": "system", "content": options.system}] if options.system else []
    turns = [{"role": message.role, "content": message.content} for message in conversation.messages]
    chosen = {"temperature": options.temperature, "seed": options.seed, "num_predict": options.max_tokens}
    body: dict[str, Any] = {"model": model, "messages": [*system, *turns], "stream": True}
    if set_options := {name: value for name, value in chosen.items() if value is not None}:
        body["options"] = set_options
    if options.keep_alive is not None:
        body["keep_alive"] = _number_if_one(options.keep_alive)
    if options.think is not None:
        body["think"] = options.think
    return body


def timing_line(last: dict[str, Any]) -> str:
    """The figures of an answer's last object: "23 tokens, 812.4 tokens/s, prompt 9 tokens, load 0.2 s, total 0.3 s"."""
    count, duration_ns = last.get("eval_count") or 0, last.get("eval_duration") or 0
    speed = f"{count / duration_ns * NS_PER_S:.1f} tokens/s" if duration_ns else "speed not measured"
    load_s, total_s = (last.get("load_duration") or 0) / 1e9, (last.get("total_duration") or 0) / 1e9
    prompt = last.get("prompt_eval_count") or 0
    return f"{count} tokens, {speed}, prompt {prompt} tokens, load {load_s:.2f} s, total {total_s:.2f} s"


def _number_if_one(text: str) -> str | float:
    """Seconds are numbers in the API, "10m" is a text."""
    try:
        return float(text)
    except ValueError:
        return text
