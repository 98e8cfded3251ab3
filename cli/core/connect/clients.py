"""The table of clients. Pure, and the one source of `puna connect`, of the page's view and of docs/clients.md.

Checked against Claude Code 2.1.197, Codex 0.169.0, opencode 1.18.33, aider 0.86.2, Qwen Code 0.24.4, Continue 1.5.47,
Cline 3.0.65 and the documentation of Roo Code and Zed.
"""

from functools import partial

from cli.core.connect.client import EXPORTED_KEY, ClientApi, ConnectClient, Format, Setting
from common.nearest import nearest

# What most coding agents need.
_agent = partial(ConnectClient, context_min=32768, context=65536, output=8192, needs_tools=True)

# Each kind of work of the client has a variable of its own for its model.
_CLAUDE_CODE = """\
{
  "env": {
    "ANTHROPIC_BASE_URL": "{{url}}",
    "ANTHROPIC_AUTH_TOKEN": "{{key}}",
    "ANTHROPIC_MODEL": "{{model}}",
    "ANTHROPIC_DEFAULT_OPUS_MODEL": "{{model}}",
    "ANTHROPIC_DEFAULT_SONNET_MODEL": "{{model}}",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL": "{{model}}",
    "ANTHROPIC_DEFAULT_FABLE_MODEL": "{{model}}",
    "CLAUDE_CODE_SUBAGENT_MODEL": "{{model}}",
    "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "{{context}}",
    "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "{{output}}",
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "API_TIMEOUT_MS": "3000000"
  }
}
"""
_CODEX = """\
model = "{{model}}"
model_provider = "puna"
model_context_window = {{context}}

[model_providers.puna]
name = "Puna"
base_url = "{{url}}/v1"
wire_api = "responses"
{{?key}}env_key = "PUNA_API_KEY"
stream_idle_timeout_ms = 3000000
"""
_OPENCODE = """\
{
  "model": "puna/{{model}}",
  "small_model": "puna/{{model}}",
  "provider": {
    "puna": {
      "npm": "@ai-sdk/openai-compatible",
      "name": "Puna",
      "options": {
{{?key}}        "apiKey": "{env:PUNA_API_KEY}",
        "baseURL": "{{url}}/v1"
      },
      "models": {
        "{{model}}": {
          "name": "{{model}}",
          "tool_call": {{tools}},
          "limit": {
            "context": {{context}},
            "output": {{output}}
          }
        }
      }
    }
  }
}
"""
_AIDER = """\
model: "openai/{{model}}"
openai-api-base: "{{url}}/v1"
openai-api-key: "{{key}}"
show-model-warnings: false
"""
_AIDER_METADATA = """\
{
  "openai/{{model}}": {
    "max_input_tokens": {{context}},
    "max_output_tokens": {{output}},
    "input_cost_per_token": 0,
    "output_cost_per_token": 0,
    "litellm_provider": "openai",
    "mode": "chat"
  }
}
"""
_QWEN_CODE = """\
{
  "modelProviders": {
    "openai": [
      {
        "id": "{{model}}",
        "name": "{{model}} (Puna)",
        "baseUrl": "{{url}}/v1",
        "envKey": "PUNA_API_KEY",
        "generationConfig": {
          "timeout": 3000000,
          "contextWindowSize": {{context}},
          "samplingParams": {
            "max_tokens": {{output}}
          }
        }
      }
    ]
  },
  "env": {
    "PUNA_API_KEY": "{{key}}"
  },
  "security": {
    "auth": {
      "selectedType": "openai"
    }
  },
  "model": {
    "name": "{{model}}"
  }
}
"""

TERMINAL_AGENTS = (
    _agent(
        key="claude-code",
        name="Claude Code",
        dialect=ClientApi.ANTHROPIC,
        settings=(
            Setting(
                format=Format.JSON,
                text=_CLAUDE_CODE,
                folder="~/.claude",
                file="settings.json",
                moved_by=(("CLAUDE_CONFIG_DIR", ""),),
            ),
        ),
        context_min=49152,
        start="claude",
        limits=(
            "A model whose name begins with `claude-` ignores `CLAUDE_CODE_MAX_CONTEXT_TOKENS`; give it another name.",
            "Claude Code summarises the conversation before it reaches that figure.",
            "`CLAUDE_CODE_ATTRIBUTION_HEADER=0` keeps the beginning of prompts the same: Puna computes it once.",
            "Web search is a server tool of Anthropic, and is not there.",
        ),
    ),
    _agent(
        key="codex",
        name="Codex",
        dialect=ClientApi.RESPONSES,
        settings=(
            Setting(
                format=Format.TOML,
                text=_CODEX,
                folder="~/.codex",
                file="config.toml",
                moved_by=(("CODEX_HOME", ""),),
            ),
            EXPORTED_KEY,
        ),
        start="codex",
        limits=(
            "Codex warns that it has no metadata for the model; `model_context_window` gives it what counts.",
            "Hosted tools such as web search are not there; Puna names them in `x-puna-ignored`.",
        ),
    ),
    _agent(
        key="opencode",
        name="opencode",
        settings=(
            Setting(
                format=Format.JSON,
                text=_OPENCODE,
                folder="~/.config/opencode",
                file="opencode.json",
                moved_by=(("OPENCODE_CONFIG_DIR", ""), ("XDG_CONFIG_HOME", "opencode")),
                head='{\n  "$schema": "https://opencode.ai/config.json"\n}\n',
            ),
            EXPORTED_KEY,
        ),
        start="opencode",
        limits=(
            "An `opencode.jsonc` in the same folder, or an `opencode.json` of the project, is read later and wins.",
            "opencode fetches `@ai-sdk/openai-compatible` at its first start.",
        ),
    ),
    ConnectClient(
        key="aider",
        name="aider",
        settings=(
            Setting(format=Format.YAML, text=_AIDER, folder="~", file=".aider.conf.yml"),
            Setting(
                format=Format.JSON,
                text=_AIDER_METADATA,
                folder="~",
                file=".aider.model.metadata.json",
            ),
        ),
        context_min=8192,
        context=16384,
        start="aider",
        limits=("A `.aider.conf.yml` of the project or the working directory is read later and wins.",),
    ),
    _agent(
        key="qwen-code",
        name="Qwen Code",
        settings=(
            Setting(
                format=Format.JSON,
                text=_QWEN_CODE,
                folder="~/.qwen",
                file="settings.json",
                moved_by=(("QWEN_HOME", ""),),
            ),
        ),
        start="qwen",
        limits=("A `PUNA_API_KEY` of the environment wins over the one in the file.",),
    ),
)


_CONTINUE = """\
models:
  - name: "Puna {{model}}"
    provider: openai
    model: "{{model}}"
    apiBase: "{{url}}/v1"
    apiKey: "{{key}}"
    roles:
      - chat
      - edit
      - apply
{{?tools}}    capabilities:
{{?tools}}      - tool_use
    defaultCompletionOptions:
      contextLength: {{context}}
      maxTokens: {{output}}
"""
_CLINE = """\
In VS Code: the Cline panel, the gear, then

  API Provider          OpenAI Compatible
  Base URL              {{url}}/v1
  API Key               {{key}}
  Model ID              {{model}}
  Context Window Size   {{context}}
  Max Output Tokens     {{output}}
"""
_CLINE_SHELL = """\
cline auth --provider openai-compatible --baseurl {{url}}/v1 --apikey {{key}} --modelid {{model}}
"""
_ROO = """\
In VS Code: the Roo Code panel, the gear, Providers, then

  API Provider          OpenAI Compatible
  Base URL              {{url}}/v1
  API Key               {{key}}
  Model                 {{model}}
  Context Window Size   {{context}}
  Max Output Tokens     {{output}}
"""
_ZED = """\
{
  "language_models": {
    "openai_compatible": {
      "puna": {
        "api_url": "{{url}}/v1",
        "available_models": [
          {
            "name": "{{model}}",
            "display_name": "{{model}} (Puna)",
            "max_tokens": {{context}},
            "max_output_tokens": {{output}},
            "capabilities": {
              "tools": {{tools}},
              "images": {{images}},
              "parallel_tool_calls": true,
              "prompt_cache_key": false
            }
          }
        ]
      }
    }
  },
  "agent": {
    "default_model": {
      "provider": "puna",
      "model": "{{model}}"
    }
  }
}
"""
_ZED_SHELL = """\
export PUNA_API_KEY={{key}}
"""

EDITOR_AGENTS = (
    ConnectClient(
        key="continue",
        name="Continue",
        settings=(
            Setting(
                format=Format.YAML,
                text=_CONTINUE,
                folder="~/.continue",
                file="config.yaml",
                moved_by=(("CONTINUE_GLOBAL_DIR", ""),),
                head="name: Local\nversion: 1.0.0\nschema: v1\n",
            ),
        ),
        context_min=16384,
        context=32768,
        needs_tools=True,
        start="cn",
        limits=("Choose the model *Puna …* in the panel; agent mode needs a model with tools.",),
    ),
    _agent(
        key="cline",
        name="Cline",
        settings=(
            Setting(label="VS Code", format=Format.STEPS, text=_CLINE),
            Setting(label="command line", format=Format.SHELL, text=_CLINE_SHELL),
        ),
        start="cline",
        limits=("The extension keeps its settings inside VS Code: there is no file to write.",),
    ),
    _agent(
        key="roo-code",
        name="Roo Code",
        settings=(Setting(label="VS Code", format=Format.STEPS, text=_ROO),),
        limits=("The extension keeps its settings inside VS Code: there is no file to write.",),
    ),
    _agent(
        key="zed",
        name="Zed",
        settings=(
            Setting(
                format=Format.JSON,
                text=_ZED,
                folder="~/.config/zed",
                file="settings.json",
                moved_by=(("XDG_CONFIG_HOME", "zed"),),
            ),
            Setting(label="environment", format=Format.SHELL, text=_ZED_SHELL),
        ),
        context_min=16384,
        context=32768,
        start="zed",
        limits=(
            "Zed needs a key even where the gateway asks for none: `PUNA_API_KEY`, or its settings page.",
            "A settings file with comments is not changed by `--write`: merge the text by hand.",
        ),
    ),
)


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


CLIENTS: dict[str, ConnectClient] = {client.key: client for client in (*TERMINAL_AGENTS, *EDITOR_AGENTS, *LIBRARIES)}
# Other spellings that people try.
_OTHER_NAMES = {
    "claude": "claude-code",
    "claudecode": "claude-code",
    "openwebui": "open-webui",
    "roo": "roo-code",
    "qwen": "qwen-code",
    "llama-index": "llamaindex",
    "vercel": "ai-sdk",
    "vercel-ai-sdk": "ai-sdk",
}


def client_named(name: str) -> ConnectClient:
    """Return the client of a name.

    Raises:
        ValueError: there is none; the text suggests the nearest name.
    """
    written = name.strip().lower().replace("_", "-").replace(" ", "-")
    client = CLIENTS.get(_OTHER_NAMES.get(written, written))
    if client is None:
        near = nearest(written, (*CLIENTS, *_OTHER_NAMES))
        hint = f"did you mean {_OTHER_NAMES.get(near, near)}?" if near else "`puna connect` lists the clients"
        raise ValueError(f"unknown client {name[:64]!r}; {hint}")
    return client
