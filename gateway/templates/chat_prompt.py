"""Turn a conversation into prompt segments with the model's own template."""

import functools
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from common.errors import QueueFull, TemplateFailed
from common.telemetry.logs import get_logger
from gateway.core.asked.answers import Chat, Message, Think, ToolCall
from gateway.core.models.chat_template import TemplateChoice, TemplatePolicy
from gateway.core.models.routes import ModelInfo
from gateway.core.models.stored_model import merged_system
from gateway.core.prepare.literals import LiteralGuard, Segment, Text, special_pattern

log = get_logger()

DEFAULT_POLICY = TemplatePolicy()
_SMALL_CHARACTERS = 2_000
_SAMPLE = Chat(messages=(Message(role="user", content="Hello"),))
_PREFILL_MARK = "\ue002\ue003\ue002"
_PATTERNS_CACHED_MAX = 64
_REMEMBERED_MAX = 256


class Renderer(Protocol):
    """What renders a template (`gateway.templates.pool.TemplatePool`)."""

    async def render(self, template: str, variables: Mapping[str, object]) -> str:
        """The rendered text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """A rendered conversation. `stop` are strings that end a turn where the model has no token for it."""

    segments: tuple[Segment, ...]
    stop: tuple[str, ...] = ()


class ChatPrompts:
    """Renders conversations; warns once for each model whose template is a guess."""

    def __init__(self, renderer: Renderer, policy: TemplatePolicy = DEFAULT_POLICY) -> None:
        self._renderer = renderer
        self.policy = policy
        self._warned: set[str] = set()
        self._without_system: set[tuple[str, str]] = set()  # digests and templates that refuse system messages
        self._flaws: dict[str, str] = {}  # templates of models; empty: none was seen in the sample

    async def make(self, model: ModelInfo, chat: Chat, think: Think | None) -> ChatPrompt:
        """The prompt of a conversation.

        Some templates know no system messages. What the model itself says there is part of its first question then.

        Raises:
            TemplateFailed: the template refused the conversation, or is broken.
        """
        choice = TemplateChoice(text=chat.template, source="request") if chat.template else self._template_of(model)
        key = model.digest, choice.text
        merged = merged_system(chat, model.system)
        if merged is None:
            try:
                return await self._rendered(choice, model, chat, think)
            except TemplateFailed as error:
                if error.is_flaw and choice.source != "request" and _is_small(chat):
                    self._remember_flaw(model, choice.text, error)
                raise
        if key in self._without_system:
            return await self._rendered(choice, model, merged, think)
        try:
            return await self._rendered(choice, model, chat, think)
        except TemplateFailed as error:
            try:
                prompt = await self._rendered(choice, model, merged, think)
            except TemplateFailed:
                raise error from None  # it was not the system message
            log.info("template.without_system", model=model.name, text=error.message)
            if len(self._without_system) < _REMEMBERED_MAX:
                self._without_system.add(key)
            return prompt

    async def _rendered(self, choice: TemplateChoice, model: ModelInfo, chat: Chat, think: Think | None) -> ChatPrompt:
        guard = LiteralGuard(
            pattern=_pattern_of((*model.special_tokens, *choice.markers)), nonce=secrets.randbits(64) | 1 << 63
        )
        messages = [_message_variables(message, guard) for message in chat.messages]
        prefill = bool(chat.messages) and chat.messages[-1].role == "assistant" and not chat.messages[-1].tool_calls
        if prefill:
            messages[-1]["content"] = f"{messages[-1]['content']}{_PREFILL_MARK}"
        variables: dict[str, object] = {
            **_think_variables(model, think),
            **chat.template_kwargs,
            "messages": messages,
            "tools": guard.hide_all(list(chat.tools)) if chat.tools else None,
            "documents": None,
            "add_generation_prompt": not prefill,
            "bos_token": model.bos_token,
            "eos_token": model.eos_token,
        }
        rendered = await self._renderer.render(choice.text, variables)
        if prefill:
            # The answer goes on where the last message ends, so what the template puts behind it is cut off.
            rendered = rendered.rpartition(_PREFILL_MARK)[0] or rendered
        return ChatPrompt(segments=_joined(guard.split(rendered)), stop=choice.stop)

    def template_text(self, model: ModelInfo) -> str:
        """The template of a model's conversations, for whoever reads what it tells; empty: there is none."""
        try:
            return self.policy.choose(model).text
        except TemplateFailed:  # said when a conversation is to be rendered; other prompts need none
            return ""

    def flaw_seen(self, model: ModelInfo) -> str:
        """What is wrong with a model's template, as far as anybody has looked; empty: nothing."""
        return self._flaws.get(self.template_text(model), "")

    async def flaw_of(self, model: ModelInfo) -> str:
        """What is wrong with a model's template itself: it reaches for what it must not, or runs over its limits.

        A template that is new here is rendered once, with a conversation that none refuses for its form.
        """
        text = self.template_text(model)
        if text and text not in self._flaws:
            try:
                await self._rendered(self.policy.choose(model), model, _SAMPLE, None)
            except QueueFull:
                return ""  # somebody may look again
            except TemplateFailed as error:
                self._remember_flaw(model, text, error)
            else:
                self._remember_flaw(model, text, None)
        return self._flaws.get(text, "")

    def _remember_flaw(self, model: ModelInfo, template: str, error: TemplateFailed | None) -> None:
        """An error that may come from elsewhere is not remembered: somebody may look again."""
        if self._flaws.get(template) or len(self._flaws) >= _REMEMBERED_MAX:
            return
        if error is None or error.is_flaw is False:
            self._flaws[template] = ""
        elif error.is_flaw:
            self._flaws[template] = error.message
            log.warning("template.flawed", model=model.name, text=error.message)

    async def check(self, template: str) -> None:
        """See that a template can be run.

        Raises:
            TemplateFailed: it cannot be read.
        """
        # Behind a condition that nobody meets it is read and not run.
        await self._renderer.render("{% if false %}" + template + "{% endif %}", {})

    def _template_of(self, model: ModelInfo) -> TemplateChoice:
        choice = self.policy.choose(model)
        if choice.is_guess and model.digest not in self._warned:
            self._warned.add(model.digest)
            log.warning("template.missing", model=model.name, used=choice.source)
        return choice


@functools.lru_cache(maxsize=_PATTERNS_CACHED_MAX)
def _pattern_of(special_tokens: tuple[str, ...]) -> re.Pattern[str] | None:
    return special_pattern(special_tokens)


def _is_small(chat: Chat) -> bool:
    """Whether nothing that goes wrong can be due to its length."""
    return not chat.tools and sum(len(message.content) for message in chat.messages) <= _SMALL_CHARACTERS


def _message_variables(message: Message, guard: LiteralGuard) -> dict[str, object]:
    content = guard.hide_with_images(message.content, message.images)
    variables: dict[str, object] = {"role": message.role, "content": content}
    if message.thinking:
        thinking = guard.hide(message.thinking)
        variables |= {"reasoning_content": thinking, "thinking": thinking}
    if message.tool_calls:
        variables["tool_calls"] = [_call_variables(call, guard) for call in message.tool_calls]
    if message.tool_name:
        variables["name"] = variables["tool_name"] = guard.hide(message.tool_name)
    if message.tool_call_id:
        variables["tool_call_id"] = guard.hide(message.tool_call_id)
    return variables


def _call_variables(call: ToolCall, guard: LiteralGuard) -> dict[str, object]:
    function = {"name": guard.hide(call.name), "arguments": guard.hide_all(call.arguments)}
    return {"type": "function", "id": guard.hide(call.id), "function": function}


def _think_variables(model: ModelInfo, think: Think | None) -> dict[str, object]:
    if "thinking" not in model.capabilities:
        return {}
    wanted = think is not Think.OFF
    variables: dict[str, object] = {"enable_thinking": wanted, "thinking": wanted}
    if think in (Think.LOW, Think.MEDIUM, Think.HIGH, Think.MAX):
        variables["reasoning_effort"] = "high" if think is Think.MAX else str(think)
    return variables


def _joined(segments: list[Segment]) -> tuple[Segment, ...]:
    """At least one segment, so that an empty rendering is refused by the runner as such and not lost here."""
    return tuple(segments) or (Text(""),)
