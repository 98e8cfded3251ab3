"""Choice of the chat template that a model's conversations are rendered with. Pure.

A model whose file has none takes that of the family with the same special tokens. The forms are public: ChatML, Llama
3, Mistral's `[INST]`, Gemma's turns, and Llama 2 for models with the tokens of a plain Llama. A model that has none of
their tokens gets ChatML as text.
"""

from collections.abc import Collection
from dataclasses import dataclass

from common.chat_templates import is_jinja
from common.errors import TemplateFailed
from gateway.core.models.routes import ModelInfo

_SYSTEM_FIRST = (
    "{% if messages and messages[0].role == 'system' %}{% set system = messages[0].content %}"
    "{% set turns = messages[1:] %}{% else %}{% set system = '' %}{% set turns = messages %}{% endif %}"
)
CHATML_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n"
    "{{ message.content }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
_MISTRAL = (
    _SYSTEM_FIRST
    + "{{ bos_token }}{% for message in turns %}{% if message.role == 'assistant' %} {{ message.content }}"
    "{{ eos_token }}{% else %}[INST] {% if loop.first and system %}{{ system }}\n\n{% endif %}"
    "{{ message.content }} [/INST]{% endif %}{% endfor %}"
)
_LLAMA2 = (
    _SYSTEM_FIRST
    + "{% for message in turns %}{% if message.role == 'assistant' %} {{ message.content }} {{ eos_token }}"
    "{% else %}{{ bos_token }}[INST] {% if loop.first and system %}<<SYS>>\n{{ system }}\n<</SYS>>\n\n{% endif %}"
    "{{ message.content }} [/INST]{% endif %}{% endfor %}"
)
_GEMMA = (
    _SYSTEM_FIRST + "{{ bos_token }}{% for message in turns %}<start_of_turn>"
    "{{ 'model' if message.role == 'assistant' else 'user' }}\n"
    "{% if loop.first and system %}{{ system }}\n\n{% endif %}{{ message.content }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyTemplate:
    """`tokens` tell the family, `markers` must stay text in what people write, `stop` ends a turn."""

    name: str
    tokens: frozenset[str]
    template: str
    markers: tuple[str, ...]
    stop: tuple[str, ...] = ()


CHATML = FamilyTemplate(
    name="chatml",
    tokens=frozenset({"<|im_start|>", "<|im_end|>"}),
    template=CHATML_TEMPLATE,
    markers=("<|im_start|>", "<|im_end|>"),
    stop=("<|im_end|>",),
)
# The first whose tokens the model has; what has more of its own comes first.
FAMILIES = (
    CHATML,
    FamilyTemplate(
        name="llama3",
        tokens=frozenset({"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}),
        template=_LLAMA3,
        markers=("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        stop=("<|eot_id|>",),
    ),
    FamilyTemplate(
        name="gemma",
        tokens=frozenset({"<start_of_turn>", "<end_of_turn>"}),
        template=_GEMMA,
        markers=("<start_of_turn>", "<end_of_turn>"),
        stop=("<end_of_turn>",),
    ),
    FamilyTemplate(
        name="mistral", tokens=frozenset({"[INST]", "[/INST]"}), template=_MISTRAL, markers=("[INST]", "[/INST]")
    ),
    FamilyTemplate(
        name="llama2",
        tokens=frozenset({"<s>", "</s>"}),
        template=_LLAMA2,
        markers=("[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"),
    ),
)


def closest_family(special_tokens: Collection[str]) -> FamilyTemplate:
    """Return the family whose tokens a model has; ChatML if it has those of none."""
    have = frozenset(special_tokens)
    return next((family for family in FAMILIES if family.tokens <= have), CHATML)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateChoice:
    """A template and where it came from. `is_guess`: it is not the model's own. Markers and stops are the guess's."""

    text: str
    source: str  # "modelfile", "gguf", "file", or "fallback: " and a family
    is_guess: bool = False
    markers: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplatePolicy:
    """Setting PUNA_TEMPLATE, parsed."""

    only_own: bool = False  # no guesses: a model without a template refuses conversations
    file_template: str = ""  # instead of a guess

    def choose(self, model: ModelInfo) -> TemplateChoice:
        """Choose a Jinja template of the manifest, that of the GGUF, the operator's file, or the closest family's.

        Raises:
            TemplateFailed: the model has none, and guesses are off.
        """
        if is_jinja(model.template):
            return TemplateChoice(text=model.template, source="modelfile")
        if model.chat_template:
            return TemplateChoice(text=model.chat_template, source="gguf")
        if self.only_own:
            raise TemplateFailed(f"{model.name} has no chat template, and PUNA_TEMPLATE=gguf allows no other")
        if self.file_template:
            return TemplateChoice(text=self.file_template, source="file", is_guess=True)
        family = closest_family(model.special_tokens)
        return TemplateChoice(
            text=family.template,
            source=f"fallback: {family.name}",
            is_guess=True,
            markers=family.markers,
            stop=family.stop,
        )
