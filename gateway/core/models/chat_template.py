"""Choice of the chat template that a model's conversations are rendered with. Pure."""

from dataclasses import dataclass

from common.chat_templates import is_jinja
from common.errors import TemplateFailed
from gateway.core.models.family_templates import closest_family
from gateway.core.models.routes import ModelInfo


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
