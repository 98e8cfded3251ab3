"""Merge the layers of options into the plan of one answer: defaults < dialect < GGUF < Modelfile < request."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from common.spec.rules import OptionKind, Rule
from common.spec.sampling import RULES, Sampling
from gateway.core.models.routes import ModelInfo
from gateway.core.request.answers import Dialect
from gateway.core.request.option_table import SAMPLING_RULES, OptionValue, out_of_range

NATIVE_DEFAULTS: Mapping[str, OptionValue] = {}
OPENAI_DEFAULTS: Mapping[str, OptionValue] = {"temperature": 1.0, "top_p": 1.0}
DEFAULTS = {Dialect.OPENAI: OPENAI_DEFAULTS, Dialect.ANTHROPIC: OPENAI_DEFAULTS}
_DRAW = -1  # a seed that asks for a drawn one
_DEFAULT = Sampling()


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPlan:
    """Every option with its final value. `context_tokens` None: the slot's."""

    sampling: Sampling
    max_tokens: int | None
    keep_tokens: int
    stop: tuple[str, ...]
    cache_prompt: bool
    speculates: bool
    context_tokens: int | None
    speculative_tokens: int | None = None  # most guesses of a call; None: as many as pay
    think_budget: int | None = None  # tokens of reasoning; None: as many as the model wants


def plan_answer(
    *,
    dialect: Mapping[str, OptionValue],
    model: ModelInfo,
    requested: Mapping[str, OptionValue],
    drawn_seed: int,
) -> AnswerPlan:
    """Plan the answer of a known model. `drawn_seed` is used where no layer sets a seed.

    Raises:
        InvalidRequest: a value that only the model's sizes show to be out of range.
    """
    merged: dict[str, OptionValue] = {**dialect, **model.own_options, **requested}
    context_tokens = cast(int | None, merged.get("num_ctx"))
    if context_tokens is not None and model.context_tokens:
        context_tokens = min(context_tokens, model.context_tokens)
    _check_against_model(requested, model, context_tokens)
    given: dict[str, Any] = {name: value for name, value in merged.items() if name in RULES}
    seed = cast(int, merged.get("seed", _DRAW))
    # As in Ollama, 0 and -2 ("fill the context") are no limit either.
    num_predict = cast(int, merged.get("num_predict", -1))
    return AnswerPlan(
        sampling=Sampling(**given, seed=drawn_seed if seed == _DRAW else seed % 2**64),
        max_tokens=num_predict if num_predict > 0 else None,
        keep_tokens=cast(int, merged.get("num_keep", 4)),
        stop=cast(tuple[str, ...], merged.get("stop", ())),
        cache_prompt=cast(bool, merged.get("cache_prompt", True)),
        speculates=merged.get("speculative", "auto") == "on",
        context_tokens=context_tokens,
        speculative_tokens=cast(int | None, merged.get("speculative_tokens")),
        think_budget=cast(int | None, merged.get("think_budget")),
    )


def _check_against_model(requested: Mapping[str, OptionValue], model: ModelInfo, context_tokens: int | None) -> None:
    limits = {
        "top_k": model.vocabulary_size,
        "repeat_last_n": context_tokens or model.context_tokens,
        "num_keep": context_tokens or model.context_tokens,
    }
    for name, limit in limits.items():
        value = requested.get(name)
        if limit and isinstance(value, int) and value > limit:
            raise out_of_range(name, SAMPLING_RULES[name])
    bias = cast(Mapping[int, float], requested.get("logit_bias", {}))
    if model.vocabulary_size and any(token_id >= model.vocabulary_size for token_id in bias):
        raise out_of_range("logit_bias", _BIAS_RANGE)


_BIAS_RANGE = Rule(kind=OptionKind.BIAS, range_text="a map from ids of the vocabulary to biases")
