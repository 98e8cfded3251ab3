"""Merge the layers of options into the plan of one answer: defaults < dialect < GGUF < Modelfile < request."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from gateway.core.asked.option_table import SAMPLING_RULES, OptionValue, out_of_range
from gateway.core.models.routes import ModelInfo

ENGINE_DEFAULTS: Mapping[str, OptionValue] = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.9,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repeat_last_n": 64,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "dry_sequence_breakers": (),
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "top_n_sigma": 0.0,
    "seed": -1,
    "num_predict": -1,
    "num_keep": 4,
    "stop": (),
    "logit_bias": {},
    "cache_prompt": True,
}
NATIVE_DEFAULTS: Mapping[str, OptionValue] = {}
OPENAI_DEFAULTS: Mapping[str, OptionValue] = {"temperature": 1.0, "top_p": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPlan:
    """Every option with its final value. `seed` -1: one is to be drawn. `context_tokens` None: the slot's."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repeat_last_n: int
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: tuple[str, ...]
    xtc_probability: float
    xtc_threshold: float
    top_n_sigma: float
    seed: int
    max_tokens: int | None
    keep_tokens: int
    stop: tuple[str, ...]
    logit_bias: Mapping[int, float]
    cache_prompt: bool
    context_tokens: int | None
    think_budget: int | None = None  # tokens of reasoning; None: as many as the model wants


def plan_answer(
    *, dialect: Mapping[str, OptionValue], model: ModelInfo, requested: Mapping[str, OptionValue]
) -> AnswerPlan:
    """The plan for a model that is known.

    Raises:
        InvalidRequest: a value that only the model's sizes show to be out of range.
    """
    merged: dict[str, OptionValue] = {**ENGINE_DEFAULTS, **dialect, **model.own_options, **requested}
    context_tokens = cast(int | None, merged.get("num_ctx"))
    if context_tokens is not None and model.context_tokens:
        context_tokens = min(context_tokens, model.context_tokens)
    _check_against_model(requested, model, context_tokens)
    num_predict = cast(int, merged["num_predict"])
    return AnswerPlan(
        temperature=cast(float, merged["temperature"]),
        top_k=cast(int, merged["top_k"]),
        top_p=cast(float, merged["top_p"]),
        min_p=cast(float, merged["min_p"]),
        typical_p=cast(float, merged["typical_p"]),
        repeat_last_n=cast(int, merged["repeat_last_n"]),
        repeat_penalty=cast(float, merged["repeat_penalty"]),
        presence_penalty=cast(float, merged["presence_penalty"]),
        frequency_penalty=cast(float, merged["frequency_penalty"]),
        dry_multiplier=cast(float, merged["dry_multiplier"]),
        dry_base=cast(float, merged["dry_base"]),
        dry_allowed_length=cast(int, merged["dry_allowed_length"]),
        dry_penalty_last_n=cast(int, merged["dry_penalty_last_n"]),
        dry_sequence_breakers=cast(tuple[str, ...], merged["dry_sequence_breakers"]),
        xtc_probability=cast(float, merged["xtc_probability"]),
        xtc_threshold=cast(float, merged["xtc_threshold"]),
        top_n_sigma=cast(float, merged["top_n_sigma"]),
        seed=cast(int, merged["seed"]),
        max_tokens=None if num_predict < 0 else num_predict,
        keep_tokens=cast(int, merged["num_keep"]),
        stop=cast(tuple[str, ...], merged["stop"]),
        logit_bias=cast(Mapping[int, float], merged["logit_bias"]),
        cache_prompt=cast(bool, merged["cache_prompt"]),
        context_tokens=context_tokens,
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


_BIAS_RANGE = type(SAMPLING_RULES["top_k"])(
    kind=SAMPLING_RULES["logit_bias"].kind, range_text="a map from ids of the vocabulary to biases"
)
