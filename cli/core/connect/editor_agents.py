"""Coding agents of editors: rows of the table of clients. Pure.

Checked against Continue 1.5.47, Cline 3.0.65 and the documentation of Roo Code and Zed.
"""

from cli.core.connect.client import ConnectClient, Format, Setting

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
    ConnectClient(
        key="cline",
        name="Cline",
        settings=(
            Setting(label="VS Code", format=Format.STEPS, text=_CLINE),
            Setting(label="command line", format=Format.SHELL, text=_CLINE_SHELL),
        ),
        context_min=32768,
        context=65536,
        output=8192,
        needs_tools=True,
        start="cline",
        limits=("The extension keeps its settings inside VS Code: there is no file to write.",),
    ),
    ConnectClient(
        key="roo-code",
        name="Roo Code",
        settings=(Setting(label="VS Code", format=Format.STEPS, text=_ROO),),
        context_min=32768,
        context=65536,
        output=8192,
        needs_tools=True,
        limits=("The extension keeps its settings inside VS Code: there is no file to write.",),
    ),
    ConnectClient(
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
        output=8192,
        needs_tools=True,
        start="zed",
        limits=(
            "Zed needs a key even where the gateway asks for none: `PUNA_API_KEY`, or its settings page.",
            "A settings file with comments is not changed by `--write`: merge the text by hand.",
        ),
    ),
)
