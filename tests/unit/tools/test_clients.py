"""The parts of `make clients` that need no client: the scripted model, the share of cached tokens, the page."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pytest

from gateway.templates.worker import make_environment
from tools.clients import scripted_model
from tools.clients.catalogue import CLIENTS
from tools.clients.recorder import Exchange
from tools.clients.rows import Row, with_rows
from tools.clients.usage import PrefixLost, Usage, check_prefix_kept, usage_of
from tools.conformance.document import CLIENTS_HEADING, split_page

PAGE = Path(__file__).resolve().parents[3] / "docs" / "compatibility.md"
WRITE = {"type": "function", "function": {"name": "write", "parameters": {}}}
ASK = {"role": "user", "content": 'Go. ⟪call write {"a": "x\\ny"}⟫ ⟪say Done: {result}⟫'}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "write", "arguments": {"a": "x\ny"}}}]}
RESULT = {"role": "tool", "content": "it is written"}
FOUR = {"cached_tokens": 4}

Numbers = np.ndarray[Any, np.dtype[np.float64]]


@pytest.fixture(scope="module")
def template() -> jinja2.Template:
    return make_environment().from_string(scripted_model.TEMPLATE.read_text(encoding="utf-8"))


def render(template: jinja2.Template, *messages: dict[str, Any], **more: Any) -> str:
    return template.render(messages=list(messages), add_generation_prompt=True, **more)


def dictated(prompt: str) -> str:
    """Return the text that the cells at the end of a prompt spell; check that the start token has their number."""
    words = scripted_model.vocabulary()
    spoken = {scripted_model.cell(text): text for text in (*scripted_model.CHARACTERS, *scripted_model.SPOKEN_SPECIALS)}
    texts, place = [], prompt.rindex("<|start ")
    start = prompt[place:]
    assert start in words.texts
    prompt = prompt[:place]
    while (found := next((cell for cell in spoken if prompt.endswith(cell)), None)) is not None:
        texts.append(spoken[found])
        prompt = prompt.removesuffix(found)
    assert start == scripted_model.start(len(texts))
    return "".join(reversed(texts)).split("<|im_end|>")[0]


def test_the_template_dictates_one_step_after_the_other(template: jinja2.Template) -> None:
    first = render(template, ASK, tools=[WRITE])
    second = render(template, ASK, CALL, RESULT, tools=[WRITE])
    assert dictated(first) == '<tool_call>\n{"name": "write", "arguments": {"a": "x\\ny"}}\n</tool_call>'
    assert dictated(second) == "Done: it is written"
    assert dictated(render(template, {"role": "user", "content": "Hi"})) == "Hello from Puna."


def test_prompts_share_all_but_the_dictation(template: jinja2.Template) -> None:
    first = render(template, ASK, tools=[WRITE])
    second = render(template, ASK, CALL, RESULT, tools=[WRITE])
    shared = first[: first.rindex("<|im_start|>assistant\n")]
    assert second.startswith(shared)


def test_thoughts_are_dictated_where_they_are_wanted(template: jinja2.Template) -> None:
    thinking = dictated(render(template, ASK, tools=[WRITE], enable_thinking=True))
    assert thinking.startswith("<think>\nThis is the next step.\n</think>\n\n<tool_call>")


def test_a_tool_that_is_not_offered_is_named(template: jinja2.Template) -> None:
    tool = {"type": "function", "function": {"name": "read"}}
    assert dictated(render(template, ASK, tools=[tool])) == "No tool write in: read"


def test_weights_copy_the_dictated_token_at_any_distance() -> None:
    """The model's own arithmetic in float64, behind other text of any length."""
    words, weights = scripted_model.vocabulary(), scripted_model.tensors()
    ids = {text: number for number, text in enumerate(words.texts)}
    said = '{"a": "x\\ny"}'
    cells = [ids[scripted_model.cell(character)] for character in said]
    end = ids[scripted_model.cell("<|im_end|>")]
    cells += [end] * (scripted_model.BUCKET_CELLS - len(cells))
    for others in (0, 1, 900):
        tokens = [ids["a"]] * others + [*cells, words.starts[0]]
        answer = ""
        while (token := int(logits(tokens, weights).argmax())) != ids["<|im_end|>"] and len(answer) < len(cells):
            answer += words.texts[token]
            tokens.append(token)
        assert answer.replace("Ġ", " ") == said


def logits(tokens: list[int], weights: dict[str, scripted_model.Matrix]) -> Numbers:
    hidden = weights["token_embd.weight"][tokens].astype(np.float64)
    positions = np.arange(len(tokens))
    turns = scripted_model.ROPE_BASE ** (-2 * np.arange(scripted_model.PAIRS) / scripted_model.HEAD)
    turned = np.exp(1j * np.outer(positions, turns))
    for layer in range(2):
        normal = norm(hidden)
        query, key, value = (normal @ weights[f"blk.{layer}.attn_{name}.weight"].T for name in "qkv")
        pairs = [(part[:, 0::2] + 1j * part[:, 1::2]) * turned for part in (query, key)]
        scores = (pairs[0] @ pairs[1].conj().T).real / np.sqrt(scripted_model.HEAD)
        scores[positions[:, None] < positions[None, :]] = -np.inf
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        mixed = shares / shares.sum(axis=1, keepdims=True) @ value
        hidden = hidden + mixed @ weights[f"blk.{layer}.attn_output.weight"].T
    found: Numbers = norm(hidden[-1:])[0] @ weights["output.weight"].T
    return found


def norm(hidden: Numbers) -> Numbers:
    normal: Numbers = hidden / np.sqrt((hidden**2).mean(axis=-1, keepdims=True) + 1e-6)
    return normal


def exchange(answer: str, *, tools: bool = True) -> Exchange:
    asked = json.dumps({"tools": [WRITE] if tools else []}).encode()
    return Exchange(method="POST", path="/", asked=asked, status=200, answered=answer.encode())


def chat(prompt: int, cached: int) -> Exchange:
    usage = {"prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": cached}, "completion_tokens": 9}
    return exchange(f"data: {json.dumps({'usage': None})}\n\ndata: {json.dumps({'usage': usage})}\n\ndata: [DONE]\n\n")


@pytest.mark.parametrize(
    "events",
    [
        [{"usage": None}, {"usage": {"prompt_tokens": 9, "prompt_tokens_details": FOUR, "completion_tokens": 3}}],
        [{"response": {"usage": {"input_tokens": 9, "input_tokens_details": FOUR, "output_tokens": 3}}}],
        [{"message": {"usage": {"input_tokens": 5, "cache_read_input_tokens": 4}}}, {"usage": {"output_tokens": 3}}],
    ],
)
def test_usage_is_read_in_every_dialect(events: list[dict[str, Any]]) -> None:
    answer = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    assert usage_of(exchange(answer)) == Usage(prompt=9, cached=4, answer=3)


def test_a_turn_that_evaluates_its_prefix_again_is_found() -> None:
    aside = exchange("data: {}", tools=False)
    first, second = chat(132, 0), chat(152, 98)  # 32 of each prompt are dictated
    assert check_prefix_kept([first, aside, second, chat(162, 120)], turns_min=3) == 0.98
    with pytest.raises(PrefixLost, match="request 3"):
        check_prefix_kept([first, second, chat(162, 50)], turns_min=3)
    with pytest.raises(PrefixLost, match="only 2 turns"):
        check_prefix_kept([first, second], turns_min=3)


def row(**more: Any) -> Row:
    return replace(Row(client="a", version="1", dialect="Chat", task="tool", stream=False), **more)


def test_a_run_replaces_its_rows_and_keeps_the_others() -> None:
    keys = [("a", "Chat", "tool"), ("b", "Chat", "tool"), ("c", "Chat", "tool")]
    page = with_rows("# Cases\n", [row(), row(client="b", why="no | answer")], keys)
    page = with_rows(page, [row(client="b"), row(client="b", stream=True)], keys)
    assert page.startswith("# Cases\n")
    assert page.count(CLIENTS_HEADING) == 1
    assert "| a | 1 | Chat | tool | whole |" in page
    assert "| b | 1 | Chat | tool | whole, stream |" in page
    assert "| c |  | Chat | tool | not run |" in page
    assert with_rows(page, [], keys[:1]).count("\n| ") == 2


def test_the_page_has_every_client() -> None:
    _, section = split_page(PAGE.read_text(encoding="utf-8"))
    shown = {tuple(cell.strip() for cell in line.split("|")[1:5]) for line in section.splitlines() if line[:2] == "| "}
    assert {(name, dialect, task) for name, _, dialect, task in shown} - {("Client", "API", "Task")} == {
        (client.name, task.dialect, task.name) for client in CLIENTS for task in client.tasks
    }
