"""Reasoning before what is constrained, by the real engine."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from runner.core.grammar.constraint_text import ConstraintText
from runner.core.sequence.endings import EndReason
from runner.serve.constraints import ConstraintReader
from tests.integration.runner.harness import GREEDY, Harness, running

ROOT = Path(__file__).resolve().parents[3]
DEMO = ROOT / "models" / "demo.gguf"
QUESTIONS = json.loads((ROOT / "tools" / "demo_model" / "questions.json").read_text(encoding="utf-8"))["questions"]
REASONS = next(question for question in QUESTIONS if question["id"] == "multiply")
PROMPT = f"<|im_start|>user\n{REASONS['messages'][0]['content']}<|im_end|>\n<|im_start|>assistant\n"
SCHEMA = {"type": "object", "properties": {"result": {"enum": [1, 408]}}, "required": ["result"]}


def thinking_then_json(harness: Harness, *, opening: str) -> dict[str, Any]:
    wanted = ConstraintText(
        kind="json_schema", text=json.dumps({**SCHEMA, "additionalProperties": False}), free_text=(opening, "</think>")
    )
    grammar = ConstraintReader().read_now(wanted, None, harness.engine.vocabulary).grammar
    return {"grammar": grammar, "max_tokens": 300, "sampling": GREEDY}


@pytest.mark.parametrize(("prompt", "opening"), [(PROMPT, "<think>"), (f"{PROMPT}<think>", "")])
async def test_the_model_reasons_as_without_a_constraint_and_then_answers_in_json(prompt: str, opening: str) -> None:
    async with running(DEMO, slots=2, context=512, repeats_max=0) as harness:
        answer = await harness.ask(prompt, **thinking_then_json(harness, opening=opening))
    reasoning, closing, result = answer.text.partition("</think>")
    assert closing
    assert reasoning.removeprefix("<think>").strip() == REASONS["reasoning"]
    jsonschema.validate(json.loads(result), SCHEMA)
    assert answer.end.ending.reason is EndReason.END_TOKEN


async def test_an_answer_resumes_within_its_reasoning_and_behind_it() -> None:
    async with running(DEMO, slots=2, context=512, repeats_max=0) as harness:
        whole = await harness.ask(PROMPT, **thinking_then_json(harness, opening="<think>"))
        for cut in (1, len(whole.ids) // 2, len(whole.ids) - 2):
            fields = thinking_then_json(harness, opening="<think>")
            rest = await harness.ask(PROMPT, resumed=tuple(whole.ids[:cut]), **fields)
            assert rest.ids == whole.ids[cut:]
