"""Defaults of a stored model, and options of a request that override them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from common.chat_templates import is_jinja
from common.errors import StartupError, TemplateFailed
from common.spec.load_options import LoadOptions
from gateway.answers.output import plan_output
from gateway.converters.routes import model_from_proto
from gateway.core.models.chat_template import FAMILIES, TemplatePolicy, closest_family
from gateway.core.models.routes import ModelInfo
from gateway.core.models.stored_model import own_context, stored_messages, usable_parameters, with_stored_texts
from gateway.core.output_parsers.syntax import CallFamily, Form, syntax_of_parser
from gateway.core.prepare.options import OPENAI_DEFAULTS, plan_answer
from gateway.core.request.answers import AnswerRequest, Chat, Dialect, Message, RawPrompt
from gateway.core.request.option_table import OptionValue, load_options, over
from gateway.settings import template_policy
from gateway.templates.worker import make_renderer
from protos import cluster_pb2

USER = Message(role="user", content="hi")
SYSTEM = Message(role="system", content="theirs")
SHOT = (Message(role="user", content="2+2"), Message(role="assistant", content="4"))
MODEL = ModelInfo(name="m:latest", digest="d", system="ours", messages=SHOT, context_tokens=2048)


def request(*messages: Message, earlier: tuple[int, ...] = ()) -> AnswerRequest:
    return AnswerRequest(dialect=Dialect.OLLAMA, model="m", prompt=Chat(messages=messages, earlier_token_ids=earlier))


def begun(model: ModelInfo, asked: AnswerRequest) -> list[str]:
    chat = with_stored_texts(asked, model).prompt
    assert isinstance(chat, Chat)
    return [message.content for message in chat.messages]


def test_a_conversation_begins_with_the_models_system_text_and_messages() -> None:
    assert begun(MODEL, request(USER)) == ["ours", "2+2", "4", "hi"]


def test_a_system_message_of_the_request_takes_the_place_of_the_models() -> None:
    assert begun(MODEL, request(SYSTEM, USER)) == ["theirs", "2+2", "4", "hi"]


def test_what_goes_on_behind_given_tokens_has_had_the_messages() -> None:
    assert begun(MODEL, request(USER, earlier=(1, 2))) == ["ours", "hi"]


def test_raw_prompts_and_plain_models_stay_as_they_are() -> None:
    raw = replace(request(), prompt=RawPrompt(text="x"))
    assert with_stored_texts(raw, MODEL) is raw
    asked = request(USER)
    assert with_stored_texts(asked, ModelInfo(name="p:latest", digest="d")) is asked


def test_parameters_that_cannot_be_used_spoil_only_themselves() -> None:
    found = usable_parameters({"temperature": 0.5, "top_k": "many", "mirostat": 1, "stop": ["a"], "num_ctx": 2})
    assert found.values == {"temperature": 0.5, "stop": ("a",)}
    assert found.ignored == ("mirostat", "num_ctx", "top_k")


def plan(requested: Mapping[str, OptionValue]) -> dict[str, object]:
    model = ModelInfo(
        name="m:latest",
        digest="d",
        sampling_defaults={"temperature": 0.2, "top_k": 7, "min_p": 0.1},
        parameters={"temperature": 0.3, "stop": ("own",), "top_k": 8, "num_ctx": 4096},
        context_tokens=2048,
    )
    found = plan_answer(drawn_seed=0, dialect=OPENAI_DEFAULTS, model=model, requested=requested)
    chosen = {name: getattr(found.sampling, name) for name in ("temperature", "top_p", "top_k", "min_p")}
    return {**chosen, "stop": found.stop, "context_tokens": found.context_tokens}


def test_the_request_wins_over_the_modelfile_over_the_gguf_over_the_dialect_over_the_engine() -> None:
    assert plan({"top_k": 9}) == {
        "temperature": 0.3,
        "top_p": 1.0,
        "top_k": 9,
        "min_p": 0.1,
        "stop": ("own",),
        "context_tokens": 2048,
    }
    assert plan({"stop": ("theirs",)})["stop"] == ("theirs",)


def test_how_a_model_wants_to_be_loaded_holds_where_the_request_says_nothing() -> None:
    own = load_options({"num_gpu": 3, "num_batch": 64, "use_mmap": False})
    assert over(LoadOptions(num_gpu=1), own) == LoadOptions(num_gpu=1, batch_tokens=64, use_mmap=False)
    assert own_context(replace(MODEL, parameters={"num_ctx": 4096})) == 2048
    assert own_context(replace(MODEL, parameters={"num_ctx": 512})) == 512
    assert own_context(MODEL) is None


def test_a_manifests_json_is_read_and_what_is_none_says_nothing() -> None:
    proto = cluster_pb2.Model(
        name="m:latest",
        digest="d",
        system="ours",
        parameters_json='{"temperature": 0.5, "tfs_z": 1}',
        messages_json='[{"role": "User", "content": "a"}, {"role": "robot", "content": "b"}, 5, {"role": "user"}]',
        description=cluster_pb2.ModelDescription(
            metadata_json=orjson.dumps({"general.sampling.temp": 0.1, "general.sampling.xtc_threshold": 0.2}).decode()
        ),
    )
    model = model_from_proto(proto)
    assert model.parameters == {"temperature": 0.5}
    assert model.sampling_defaults == {"temperature": 0.1, "xtc_threshold": 0.2}
    assert model.messages == (Message(role="user", content="a"),)
    broken = model_from_proto(cluster_pb2.Model(name="m:latest", parameters_json="{", messages_json="5"))
    assert (broken.parameters, broken.messages) == ({}, ())
    assert stored_messages([]) == ()


@pytest.mark.parametrize(
    ("tokens", "family"),
    [
        (("<|im_start|>", "<|im_end|>", "<s>", "</s>"), "chatml"),
        (("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"), "llama3"),
        (("<s>", "</s>", "[INST]", "[/INST]"), "mistral"),
        (("<bos>", "<start_of_turn>", "<end_of_turn>"), "gemma"),
        (("<s>", "</s>", "<unk>"), "llama2"),
        ((), "chatml"),
    ],
)
def test_the_special_tokens_tell_the_closest_family(tokens: tuple[str, ...], family: str) -> None:
    assert closest_family(tokens).name == family


RENDERED = {
    "chatml": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n"
    "<|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\n",
    "llama3": "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
    "A<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nB<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
    "C<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "mistral": "<s>[INST] S\n\nA [/INST] B</s>[INST] C [/INST]",
    "llama2": "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nA [/INST] B </s><s>[INST] C [/INST]",
    "gemma": "<s><start_of_turn>user\nS\n\nA<end_of_turn>\n<start_of_turn>model\nB<end_of_turn>\n"
    "<start_of_turn>user\nC<end_of_turn>\n<start_of_turn>model\n",
}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_family_renders_its_public_form(family: object) -> None:
    assert family in FAMILIES
    found = next(one for one in FAMILIES if one is family)
    messages = [
        {"role": role, "content": text}
        for role, text in zip(("system", "user", "assistant", "user"), "SABC", strict=True)
    ]
    variables = {"messages": messages, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"}
    assert make_renderer()(found.template, variables) == {"text": RENDERED[found.name]}


def test_which_template_is_taken_and_what_the_setting_changes() -> None:
    gguf = replace(MODEL, chat_template="{% for m in messages %}{% endfor %}")
    go = replace(gguf, template="{{ if .System }}{{ .System }}{{ end }}")
    assert TemplatePolicy().choose(gguf).source == "gguf"
    assert TemplatePolicy().choose(go).source == "gguf"
    assert (
        TemplatePolicy().choose(replace(gguf, template="{%- for m in messages %}x{% endfor %}")).source == "modelfile"
    )
    assert TemplatePolicy().choose(replace(go, chat_template="")).source == "fallback: chatml"
    assert TemplatePolicy(file_template="f").choose(MODEL).text == "f"
    assert TemplatePolicy(file_template="f").choose(gguf).source == "gguf"
    with pytest.raises(TemplateFailed):
        TemplatePolicy(only_own=True).choose(MODEL)
    assert not is_jinja("{{ .Prompt }} 5%}")


def test_the_setting_names_a_file_or_stops_the_start(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{% if true %}x{% endif %}", encoding="utf-8")
    assert template_policy("auto") == TemplatePolicy()
    assert template_policy("gguf") == TemplatePolicy(only_own=True)
    assert template_policy(str(file)) == TemplatePolicy(file_template="{% if true %}x{% endif %}")
    for bad in ("modelfile", str(tmp_path / "nothing")):
        with pytest.raises(StartupError, match="PUNA_TEMPLATE"):
            template_policy(bad)


@pytest.mark.parametrize(
    ("parser", "family"),
    [
        ("qwen3-coder", CallFamily.HERMES),
        ("qwen3-vl-instruct", CallFamily.HERMES),
        ("harmony", CallFamily.HARMONY),
        ("deepseek3", CallFamily.DEEPSEEK),
        ("ministral", CallFamily.MISTRAL),
        ("glm-4.7", CallFamily.TAGGED),
        ("gemma4", CallFamily.GEMMA),
        ("lfm2-thinking", CallFamily.PYTHON),
        ("passthrough", CallFamily.NONE),
    ],
)
def test_a_manifests_parser_names_the_family(parser: str, family: CallFamily) -> None:
    syntax = syntax_of_parser(parser)
    assert syntax is not None
    assert syntax.family is family
    assert (syntax.tags is not None) == (parser in ("qwen3-coder", "glm-4.7"))


def test_the_parser_of_the_manifest_wins_over_the_template_and_a_strange_one_does_not() -> None:
    hermes = "<tool_call>"
    assert plan_output(hermes, request(USER), parser="ministral").syntax.family is CallFamily.MISTRAL
    assert plan_output(hermes, request(USER), parser="ministral").syntax.form is Form.NAMED
    assert plan_output(hermes, request(USER), parser="of-tomorrow").syntax.family is CallFamily.HERMES
    assert plan_output(hermes, request(USER)).syntax.family is CallFamily.HERMES
