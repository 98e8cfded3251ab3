"""Turn a conversation into prompt segments with the model's own template."""

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Protocol

from common.errors import QueueFull, TemplateFailed
from common.telemetry.logs import get_logger
from gateway.core.models.chat_template import TemplateChoice, TemplatePolicy
from gateway.core.models.routes import ModelInfo
from gateway.core.models.stored_model import merged_system
from gateway.core.prepare.literals import LiteralGuard, SpecialTexts, Text, TokenIds
from gateway.core.prepare.prompt import Prompt, prompt_of
from gateway.core.prepare.turns import has_later_system, with_folded_system, with_questions_in_results
from gateway.core.request.answers import Chat, Message, Think, ToolCall
from gateway.large_texts import beside_loop, count_characters

log = get_logger()

DEFAULT_POLICY = TemplatePolicy()
_SMALL_CHARACTERS = 2_000
_SMALL_MESSAGES = 20
_SAMPLE = Chat(messages=(Message(role="user", content="Hello"),))
# Each text is unlike all others, so that their order in the rendering is known.
_LATER_SYSTEM_SAMPLE = Chat(
    messages=tuple(
        Message(role=role, content=f"sample {number}")
        for number, role in enumerate(
            ("system", "system", "user", "system", "assistant", "user", "system", "assistant", "user")
        )
    )
)
_PREFILL_MARK = "\ue002\ue003\ue002"
# Templates of Mistral refuse ids of calls that are not nine letters and digits.
_WANTS_SHORT_IDS = re.compile(r"\|\s*length\s*!=\s*9\b")
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")
_MATCHERS_MAX = 64
_REMEMBERED_MAX = 256


class Renderer(Protocol):
    """Interface of a renderer of templates (`gateway.templates.pool.TemplatePool`)."""

    async def render(self, template: str, variables: Mapping[str, object], *, is_small: bool = False) -> str:
        """Render a template to text. `is_small`: if it runs over its limits, that is not due to the variables."""


class ChatPrompts:
    """Renders conversations; warns once for each model whose template is a guess."""

    def __init__(self, renderer: Renderer, policy: TemplatePolicy = DEFAULT_POLICY) -> None:
        self._renderer = renderer
        self.policy = policy
        self._warned: set[str] = set()
        self._without_system: set[tuple[str, str]] = set()  # digests and templates that refuse system messages
        self._takes_later_system: dict[tuple[str, str], bool] = {}  # by digest and template
        self._matchers: dict[tuple[tuple[str, ...], tuple[str, ...]], SpecialTexts | None] = {}
        self._flaws: dict[str, str] = {}  # templates of models; empty: none was seen in the sample

    async def make(self, model: ModelInfo, chat: Chat, think: Think | None) -> Prompt:
        """Render the prompt of a conversation.

        Many templates take system messages at the head only: they refuse later ones, drop them, or move them to the
        head. Those are marked text of a neighbouring turn then, so that an added one leaves earlier turns as they are.
        Some templates know no system messages. What the model itself says there is part of its first question then.

        Raises:
            TemplateFailed: the template refused the conversation, or is broken.
        """
        choice = TemplateChoice(text=chat.template, source="request") if chat.template else self._template_of(model)
        key = model.digest, choice.text
        if has_later_system(chat.messages) and not await self._places_later_system(choice, model):
            chat = replace(chat, messages=with_folded_system(chat.messages))
        merged = merged_system(chat, model.system)
        if merged is None:
            try:
                return await self._answerable(choice, model, chat, think)
            except TemplateFailed as error:
                if error.is_flaw and choice.source != "request" and _is_small(chat):
                    self._remember_flaw(model, choice.text, error)
                raise
        if key in self._without_system:
            return await self._answerable(choice, model, merged, think)
        try:
            return await self._answerable(choice, model, chat, think)
        except TemplateFailed as error:
            try:
                prompt = await self._answerable(choice, model, merged, think)
            except TemplateFailed:
                raise error from None  # it was not the system message
            log.info("template.without_system", model=model.name, text=error.message)
            if len(self._without_system) < _REMEMBERED_MAX:
                self._without_system.add(key)
            return prompt

    async def _answerable(self, choice: TemplateChoice, model: ModelInfo, chat: Chat, think: Think | None) -> Prompt:
        """Render a conversation; where a template refuses a question behind a tool's result, as part of that result."""
        try:
            return await self._rendered(choice, model, chat, think)
        except TemplateFailed as error:
            messages = with_questions_in_results(chat.messages)
            if messages == chat.messages:
                raise
            try:
                return await self._rendered(choice, model, replace(chat, messages=messages), think)
            except TemplateFailed:
                raise error from None  # that was not the reason

    async def _places_later_system(self, choice: TemplateChoice, model: ModelInfo) -> bool:
        """Return True if the template writes every system message where it stands. Found out once per template."""
        key = model.digest, choice.text
        if key not in self._takes_later_system:
            try:
                prompt = await self._rendered(choice, model, _LATER_SYSTEM_SAMPLE, None)
            except TemplateFailed:
                places = [-1]
            else:
                text = "".join(segment.text for segment in prompt.segments if isinstance(segment, Text))
                places = [text.find(message.content) for message in _LATER_SYSTEM_SAMPLE.messages]
            if len(self._takes_later_system) >= _REMEMBERED_MAX:
                self._takes_later_system.clear()
            self._takes_later_system[key] = places[0] >= 0 and places == sorted(places)
        return self._takes_later_system[key]

    async def _rendered(self, choice: TemplateChoice, model: ModelInfo, chat: Chat, think: Think | None) -> Prompt:
        guard = LiteralGuard(special=await self._special_texts(choice, model), nonce=secrets.randbits(64) | 1 << 63)
        ends_open = bool(chat.messages) and chat.messages[-1].role == "assistant" and not chat.messages[-1].tool_calls
        said = [(one.content, one.thinking, *(call.arguments for call in one.tool_calls)) for one in chat.messages]
        characters = count_characters([said, chat.tools])
        variables = await beside_loop(characters, lambda: _variables(choice, model, chat, think, guard, ends_open))
        rendered = await self._renderer.render(choice.text, variables, is_small=_is_small(chat))
        if ends_open:
            # The answer goes on where the last message ends, so what the template puts behind it is cut off.
            rendered = rendered.rpartition(_PREFILL_MARK)[0] or rendered
        earlier = [TokenIds(chat.earlier_token_ids)] if chat.earlier_token_ids else []
        # Megabytes of base64 are read off the event loop.
        size = inf if any(message.images for message in chat.messages) else len(rendered)
        # At least one text, so that the runner refuses an empty rendering as such.
        return await beside_loop(
            size, lambda: prompt_of([*earlier, *(guard.split(rendered) or [Text("")])], choice.stop)
        )

    async def _special_texts(self, choice: TemplateChoice, model: ModelInfo) -> SpecialTexts | None:
        key = model.special_tokens, choice.markers
        if key not in self._matchers:
            found = await beside_loop(inf, lambda: SpecialTexts.of((*model.special_tokens, *choice.markers)))
            if len(self._matchers) >= _MATCHERS_MAX:
                self._matchers.clear()
            self._matchers[key] = found
        return self._matchers[key]

    def template_text(self, model: ModelInfo) -> str:
        """Return the template of a model's conversations, to read its markers from; empty: there is none."""
        try:
            return self.policy.choose(model).text
        except TemplateFailed:  # said when a conversation is to be rendered; other prompts need none
            return ""

    def flaw_seen(self, model: ModelInfo) -> str:
        """Return the known fault of a model's template; empty if none was found, or it was never rendered."""
        return self._flaws.get(self.template_text(model), "")

    async def flaw_of(self, model: ModelInfo) -> str:
        """Return the fault of a model's template itself: forbidden access, or a limit that it exceeds. Empty: none.

        A template that is new here is rendered once, with a conversation that none refuses for its form.
        """
        text = self.template_text(model)
        if text and text not in self._flaws:
            try:
                await self._rendered(self.policy.choose(model), model, _SAMPLE, None)
            except QueueFull:
                return ""  # a later call may look again
            except TemplateFailed as error:
                self._remember_flaw(model, text, error)
            else:
                self._remember_flaw(model, text, None)
        return self._flaws.get(text, "")

    def _remember_flaw(self, model: ModelInfo, template: str, error: TemplateFailed | None) -> None:
        """Remember an error, unless it may have another cause: then a later call looks again."""
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
        # Behind a condition that is never true it is read and not run.
        await self._renderer.render("{% if false %}" + template + "{% endif %}", {})

    def _template_of(self, model: ModelInfo) -> TemplateChoice:
        choice = self.policy.choose(model)
        if choice.is_guess and model.digest not in self._warned:
            self._warned.add(model.digest)
            log.warning("template.missing", model=model.name, used=choice.source)
        return choice


def _is_small(chat: Chat) -> bool:
    """Return True if the conversation is too short and plain for a failure to be due to what it says."""
    return (
        not chat.tools
        and not chat.template_kwargs
        and len(chat.messages) <= _SMALL_MESSAGES
        and not any(message.tool_calls for message in chat.messages)
        and sum(len(message.content) + len(message.thinking) for message in chat.messages) <= _SMALL_CHARACTERS
    )


def _variables(
    choice: TemplateChoice, model: ModelInfo, chat: Chat, think: Think | None, guard: LiteralGuard, ends_open: bool
) -> dict[str, object]:
    """Build what the template sees. `ends_open`: the answer goes on where the last message ends."""
    short_ids = _WANTS_SHORT_IDS.search(choice.text) is not None
    messages = [_message_variables(message, guard, short_ids=short_ids) for message in chat.messages]
    if ends_open:
        messages[-1]["content"] = f"{messages[-1]['content']}{_PREFILL_MARK}"
    return {
        **_think_variables(model, think),
        **chat.template_kwargs,
        "messages": messages,
        "tools": guard.hide_all(list(chat.tools)) if chat.tools else None,
        "documents": None,
        "add_generation_prompt": not ends_open,
        "bos_token": model.bos_token,
        "eos_token": model.eos_token,
    }


def _message_variables(message: Message, guard: LiteralGuard, *, short_ids: bool) -> dict[str, object]:
    content = guard.hide_with_images(message.content, message.images)
    variables: dict[str, object] = {"role": message.role, "content": content}
    if message.thinking:
        thinking = guard.hide(message.thinking)
        variables |= {"reasoning_content": thinking, "thinking": thinking}
    if message.tool_calls:
        variables["tool_calls"] = [_call_variables(call, guard, short_ids=short_ids) for call in message.tool_calls]
    if message.tool_name:
        variables["name"] = variables["tool_name"] = guard.hide(message.tool_name)
    if message.tool_call_id:
        variables["tool_call_id"] = guard.hide(_call_id(message.tool_call_id, short=short_ids))
    return variables


def _call_variables(call: ToolCall, guard: LiteralGuard, *, short_ids: bool) -> dict[str, object]:
    function = {"name": guard.hide(call.name), "arguments": guard.hide_all(call.arguments)}
    return {"type": "function", "id": guard.hide(_call_id(call.id, short=short_ids)), "function": function}


def _call_id(id_: str, *, short: bool) -> str:
    """Return the id of a call as its template takes it: the same for a call and its result, in every turn."""
    if not short or _SHORT_ID.fullmatch(id_):
        return id_
    return hashlib.blake2b(id_.encode(errors="replace"), digest_size=5).hexdigest()[:9]


def _think_variables(model: ModelInfo, think: Think | None) -> dict[str, object]:
    if "thinking" not in model.capabilities:
        return {}
    wanted = think is not Think.OFF
    variables: dict[str, object] = {"enable_thinking": wanted, "thinking": wanted}
    if think in (Think.LOW, Think.MEDIUM, Think.HIGH, Think.MAX):
        variables["reasoning_effort"] = "high" if think is Think.MAX else str(think)
    return variables
