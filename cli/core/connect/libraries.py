"""Chat interfaces, proxies and libraries: rows of the table of clients. Pure."""

from cli.core.connect.client import EXPORTED_KEY, ConnectClient, Format, Setting

_OPEN_WEBUI = """\
export OPENAI_API_BASE_URL={{url}}/v1
export OPENAI_API_KEY={{key}}
export ENABLE_OLLAMA_API=false
"""
_LITELLM = """\
model_list:
  - model_name: "{{model}}"
    litellm_params:
      model: "openai/{{model}}"
      api_base: "{{url}}/v1"
{{?key}}      api_key: os.environ/PUNA_API_KEY
{{!key}}      api_key: "{{key}}"
    model_info:
      max_input_tokens: {{context}}
      max_output_tokens: {{output}}
      supports_function_calling: {{tools}}
"""
_LANGCHAIN = """\
{{?key}}import os
{{?key}}
from langchain_openai import ChatOpenAI

model = ChatOpenAI(
    model="{{model}}",
    base_url="{{url}}/v1",
{{?key}}    api_key=os.environ["PUNA_API_KEY"],
{{!key}}    api_key="{{key}}",
)
print(model.invoke("What is Puna?").content)
"""
_LLAMAINDEX = """\
{{?key}}import os
{{?key}}
from llama_index.llms.openai_like import OpenAILike

model = OpenAILike(
    model="{{model}}",
    api_base="{{url}}/v1",
{{?key}}    api_key=os.environ["PUNA_API_KEY"],
{{!key}}    api_key="{{key}}",
    context_window={{context}},
    is_chat_model=True,
{{?tools}}    is_function_calling_model=True,
)
print(model.complete("What is Puna?"))
"""
_AI_SDK = """\
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText } from "ai";

const puna = createOpenAICompatible({
  name: "puna",
  baseURL: "{{url}}/v1",
{{?key}}  apiKey: process.env.PUNA_API_KEY,
  includeUsage: true,
});
const { text } = await generateText({ model: puna("{{model}}"), prompt: "What is Puna?" });
console.log(text);
"""

LIBRARIES = (
    ConnectClient(
        key="open-webui",
        name="Open WebUI",
        settings=(Setting(label="environment", format=Format.SHELL, text=_OPEN_WEBUI),),
        context_min=4096,
        context=16384,
        start="open-webui serve",
        limits=(
            "The variables count at the first start; later they are changed in Admin Panel, Settings, Connections.",
            "In a container `127.0.0.1` is the container: use `puna up --address`, and that address here.",
        ),
    ),
    ConnectClient(
        key="litellm",
        name="LiteLLM",
        settings=(
            Setting(format=Format.YAML, text=_LITELLM, file="litellm_config.yaml"),
            EXPORTED_KEY,
        ),
        start="litellm --config litellm_config.yaml",
        limits=("The file is written into the working directory.",),
    ),
    ConnectClient(
        key="langchain",
        name="LangChain",
        settings=(Setting(label="Python: langchain-openai", format=Format.PYTHON, text=_LANGCHAIN),),
        limits=("`ChatAnthropic` and `ChatOllama` work as well, with the same address without `/v1`.",),
    ),
    ConnectClient(
        key="llamaindex",
        name="LlamaIndex",
        settings=(Setting(label="Python: llama-index-llms-openai-like", format=Format.PYTHON, text=_LLAMAINDEX),),
        limits=("`OpenAI` of LlamaIndex refuses names of models that it does not know: use `OpenAILike`.",),
    ),
    ConnectClient(
        key="ai-sdk",
        name="Vercel AI SDK",
        settings=(Setting(label="TypeScript: @ai-sdk/openai-compatible", format=Format.TYPESCRIPT, text=_AI_SDK),),
        limits=("`@ai-sdk/openai` works as well: `createOpenAI` with the same `baseURL`.",),
    ),
)
