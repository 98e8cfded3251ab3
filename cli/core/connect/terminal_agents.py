"""Coding agents of the terminal: rows of the table of clients. Pure.

Checked against Claude Code 2.1.197, Codex 0.169.0, opencode 1.18.33, aider 0.86.2 and Qwen Code 0.24.4.
"""

from cli.core.connect.client import EXPORTED_KEY, ClientApi, ConnectClient, Format, Setting

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
    ConnectClient(
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
        context=65536,
        output=8192,
        needs_tools=True,
        start="claude",
        limits=(
            "A model whose name begins with `claude-` ignores `CLAUDE_CODE_MAX_CONTEXT_TOKENS`; give it another name.",
            "Claude Code summarises the conversation before it reaches that figure.",
            "`CLAUDE_CODE_ATTRIBUTION_HEADER=0` keeps the beginning of prompts the same: Puna computes it once.",
            "Web search is a server tool of Anthropic, and is not there.",
        ),
    ),
    ConnectClient(
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
        context_min=32768,
        context=65536,
        output=8192,
        needs_tools=True,
        start="codex",
        limits=(
            "Codex warns that it has no metadata for the model; `model_context_window` gives it what counts.",
            "Hosted tools such as web search are not there; Puna names them in `x-puna-ignored`.",
        ),
    ),
    ConnectClient(
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
        context_min=32768,
        context=65536,
        output=8192,
        needs_tools=True,
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
    ConnectClient(
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
        context_min=32768,
        context=65536,
        output=8192,
        needs_tools=True,
        start="qwen",
        limits=("A `PUNA_API_KEY` of the environment wins over the one in the file.",),
    ),
)
