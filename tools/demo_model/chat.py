"""Render conversations with the model's own chat template, as a server does."""

import json
from collections.abc import Sequence
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment

from tools.demo_model.corpus import HERE, Message, Tool

TEMPLATE = HERE / "chat_template.jinja"
END_OF_TURN = "<|im_end|>"


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


class ChatTemplate:
    """A compiled chat template; renders with the conventions of Hugging Face, which GGUF templates expect."""

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = _to_json
        self._template = environment.from_string(source)

    def render(self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), thinking: bool = True) -> str:
        """Return the prompt that ends where the assistant's turn begins."""
        return self._template.render(
            messages=list(messages), tools=list(tools) or None, add_generation_prompt=True, enable_thinking=thinking
        )


def load_template() -> ChatTemplate:
    """Compile the template that the export writes into the GGUF."""
    return ChatTemplate(read_template())


def read_template() -> str:
    """Return the template's source without the newline at its end."""
    return TEMPLATE.read_text(encoding="utf-8").rstrip("\n")
