// Written from the table of clients: python -m tools.clients_table

export const CLIENTS = [
  {
    "key": "claude-code",
    "name": "Claude Code",
    "context_min": 49152,
    "context": 65536,
    "output": 8192,
    "needs_tools": true,
    "start": "claude",
    "limits": [
      "A model whose name begins with `claude-` ignores `CLAUDE_CODE_MAX_CONTEXT_TOKENS`; give it another name.",
      "Claude Code summarises the conversation before it reaches that figure.",
      "`CLAUDE_CODE_ATTRIBUTION_HEADER=0` keeps the beginning of prompts the same: Puna computes it once.",
      "Web search is a server tool of Anthropic, and is not there."
    ],
    "settings": [
      {
        "title": "~/.claude/settings.json",
        "path": "~/.claude/settings.json",
        "text": "{\n  \"env\": {\n    \"ANTHROPIC_BASE_URL\": \"{{url}}\",\n    \"ANTHROPIC_AUTH_TOKEN\": \"{{key}}\",\n    \"ANTHROPIC_MODEL\": \"{{model}}\",\n    \"ANTHROPIC_DEFAULT_OPUS_MODEL\": \"{{model}}\",\n    \"ANTHROPIC_DEFAULT_SONNET_MODEL\": \"{{model}}\",\n    \"ANTHROPIC_DEFAULT_HAIKU_MODEL\": \"{{model}}\",\n    \"ANTHROPIC_DEFAULT_FABLE_MODEL\": \"{{model}}\",\n    \"CLAUDE_CODE_SUBAGENT_MODEL\": \"{{model}}\",\n    \"CLAUDE_CODE_MAX_CONTEXT_TOKENS\": \"{{context}}\",\n    \"CLAUDE_CODE_MAX_OUTPUT_TOKENS\": \"{{output}}\",\n    \"CLAUDE_CODE_ATTRIBUTION_HEADER\": \"0\",\n    \"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC\": \"1\",\n    \"API_TIMEOUT_MS\": \"3000000\"\n  }\n}\n"
      }
    ]
  },
  {
    "key": "codex",
    "name": "Codex",
    "context_min": 32768,
    "context": 65536,
    "output": 8192,
    "needs_tools": true,
    "start": "codex",
    "limits": [
      "Codex warns that it has no metadata for the model; `model_context_window` gives it what counts.",
      "Hosted tools such as web search are not there; Puna names them in `x-puna-ignored`."
    ],
    "settings": [
      {
        "title": "~/.codex/config.toml",
        "path": "~/.codex/config.toml",
        "text": "model = \"{{model}}\"\nmodel_provider = \"puna\"\nmodel_context_window = {{context}}\n\n[model_providers.puna]\nname = \"Puna\"\nbase_url = \"{{url}}/v1\"\nwire_api = \"responses\"\n{{?key}}env_key = \"PUNA_API_KEY\"\nstream_idle_timeout_ms = 3000000\n"
      },
      {
        "title": "environment",
        "path": "",
        "text": "{{?key}}export PUNA_API_KEY={{key}}\n"
      }
    ]
  },
  {
    "key": "opencode",
    "name": "opencode",
    "context_min": 32768,
    "context": 65536,
    "output": 8192,
    "needs_tools": true,
    "start": "opencode",
    "limits": [
      "An `opencode.jsonc` in the same folder, or an `opencode.json` of the project, is read later and wins.",
      "opencode fetches `@ai-sdk/openai-compatible` at its first start."
    ],
    "settings": [
      {
        "title": "~/.config/opencode/opencode.json",
        "path": "~/.config/opencode/opencode.json",
        "text": "{\n  \"model\": \"puna/{{model}}\",\n  \"small_model\": \"puna/{{model}}\",\n  \"provider\": {\n    \"puna\": {\n      \"npm\": \"@ai-sdk/openai-compatible\",\n      \"name\": \"Puna\",\n      \"options\": {\n{{?key}}        \"apiKey\": \"{env:PUNA_API_KEY}\",\n        \"baseURL\": \"{{url}}/v1\"\n      },\n      \"models\": {\n        \"{{model}}\": {\n          \"name\": \"{{model}}\",\n          \"tool_call\": {{tools}},\n          \"limit\": {\n            \"context\": {{context}},\n            \"output\": {{output}}\n          }\n        }\n      }\n    }\n  }\n}\n"
      },
      {
        "title": "environment",
        "path": "",
        "text": "{{?key}}export PUNA_API_KEY={{key}}\n"
      }
    ]
  },
  {
    "key": "aider",
    "name": "aider",
    "context_min": 8192,
    "context": 16384,
    "output": 4096,
    "needs_tools": false,
    "start": "aider",
    "limits": [
      "A `.aider.conf.yml` of the project or the working directory is read later and wins."
    ],
    "settings": [
      {
        "title": "~/.aider.conf.yml",
        "path": "~/.aider.conf.yml",
        "text": "model: \"openai/{{model}}\"\nopenai-api-base: \"{{url}}/v1\"\nopenai-api-key: \"{{key}}\"\nshow-model-warnings: false\n"
      },
      {
        "title": "~/.aider.model.metadata.json",
        "path": "~/.aider.model.metadata.json",
        "text": "{\n  \"openai/{{model}}\": {\n    \"max_input_tokens\": {{context}},\n    \"max_output_tokens\": {{output}},\n    \"input_cost_per_token\": 0,\n    \"output_cost_per_token\": 0,\n    \"litellm_provider\": \"openai\",\n    \"mode\": \"chat\"\n  }\n}\n"
      }
    ]
  },
  {
    "key": "qwen-code",
    "name": "Qwen Code",
    "context_min": 32768,
    "context": 65536,
    "output": 8192,
    "needs_tools": true,
    "start": "qwen",
    "limits": [
      "A `PUNA_API_KEY` of the environment wins over the one in the file."
    ],
    "settings": [
      {
        "title": "~/.qwen/settings.json",
        "path": "~/.qwen/settings.json",
        "text": "{\n  \"modelProviders\": {\n    \"openai\": [\n      {\n        \"id\": \"{{model}}\",\n        \"name\": \"{{model}} (Puna)\",\n        \"baseUrl\": \"{{url}}/v1\",\n        \"envKey\": \"PUNA_API_KEY\",\n        \"generationConfig\": {\n          \"timeout\": 3000000,\n          \"contextWindowSize\": {{context}},\n          \"samplingParams\": {\n            \"max_tokens\": {{output}}\n          }\n        }\n      }\n    ]\n  },\n  \"env\": {\n    \"PUNA_API_KEY\": \"{{key}}\"\n  },\n  \"security\": {\n    \"auth\": {\n      \"selectedType\": \"openai\"\n    }\n  },\n  \"model\": {\n    \"name\": \"{{model}}\"\n  }\n}\n"
      }
    ]
  },
  {
    "key": "continue",
    "name": "Continue",
    "context_min": 16384,
    "context": 32768,
    "output": 4096,
    "needs_tools": true,
    "start": "cn",
    "limits": [
      "Choose the model *Puna …* in the panel; agent mode needs a model with tools."
    ],
    "settings": [
      {
        "title": "~/.continue/config.yaml",
        "path": "~/.continue/config.yaml",
        "text": "models:\n  - name: \"Puna {{model}}\"\n    provider: openai\n    model: \"{{model}}\"\n    apiBase: \"{{url}}/v1\"\n    apiKey: \"{{key}}\"\n    roles:\n      - chat\n      - edit\n      - apply\n{{?tools}}    capabilities:\n{{?tools}}      - tool_use\n    defaultCompletionOptions:\n      contextLength: {{context}}\n      maxTokens: {{output}}\n"
      }
    ]
  },
  {
    "key": "cline",
    "name": "Cline",
    "context_min": 32768,
    "context": 65536,
    "output": 8192,
    "needs_tools": true,
    "start": "cline",
    "limits": [
      "The extension keeps its settings inside VS Code: there is no file to write."
    ],
    "settings": [
      {
        "title": "VS Code",
        "path": "",
        "text": "In VS Code: the Cline panel, the gear, then\n\n  API Provider          OpenAI Compatible\n  Base URL              {{url}}/v1\n  API Key               {{key}}\n  Model ID              {{model}}\n  Context Window Size   {{context}}\n  Max Output Tokens     {{output}}\n"
      },
      {
        "title": "command line",
        "path": "",
        "text": "cline auth --provider openai-compatible --baseurl {{url}}/v1 --apikey {{key}} --modelid {{model}}\n"
      }
    ]
  },
  {
    "key": "roo-code",
    "name": "Roo Code",
    "context_min": 32768,
    "context": 65536,
    "output": 8192,
    "needs_tools": true,
    "start": "",
    "limits": [
      "The extension keeps its settings inside VS Code: there is no file to write."
    ],
    "settings": [
      {
        "title": "VS Code",
        "path": "",
        "text": "In VS Code: the Roo Code panel, the gear, Providers, then\n\n  API Provider          OpenAI Compatible\n  Base URL              {{url}}/v1\n  API Key               {{key}}\n  Model                 {{model}}\n  Context Window Size   {{context}}\n  Max Output Tokens     {{output}}\n"
      }
    ]
  },
  {
    "key": "zed",
    "name": "Zed",
    "context_min": 16384,
    "context": 32768,
    "output": 8192,
    "needs_tools": true,
    "start": "zed",
    "limits": [
      "Zed needs a key even where the gateway asks for none: `PUNA_API_KEY`, or its settings page.",
      "A settings file with comments is not changed by `--write`: merge the text by hand."
    ],
    "settings": [
      {
        "title": "~/.config/zed/settings.json",
        "path": "~/.config/zed/settings.json",
        "text": "{\n  \"language_models\": {\n    \"openai_compatible\": {\n      \"puna\": {\n        \"api_url\": \"{{url}}/v1\",\n        \"available_models\": [\n          {\n            \"name\": \"{{model}}\",\n            \"display_name\": \"{{model}} (Puna)\",\n            \"max_tokens\": {{context}},\n            \"max_output_tokens\": {{output}},\n            \"capabilities\": {\n              \"tools\": {{tools}},\n              \"images\": {{images}},\n              \"parallel_tool_calls\": true,\n              \"prompt_cache_key\": false\n            }\n          }\n        ]\n      }\n    }\n  },\n  \"agent\": {\n    \"default_model\": {\n      \"provider\": \"puna\",\n      \"model\": \"{{model}}\"\n    }\n  }\n}\n"
      },
      {
        "title": "environment",
        "path": "",
        "text": "export PUNA_API_KEY={{key}}\n"
      }
    ]
  },
  {
    "key": "open-webui",
    "name": "Open WebUI",
    "context_min": 4096,
    "context": 16384,
    "output": 4096,
    "needs_tools": false,
    "start": "open-webui serve",
    "limits": [
      "The variables count at the first start; later they are changed in Admin Panel, Settings, Connections.",
      "In a container `127.0.0.1` is the container: use `puna up --address`, and that address here."
    ],
    "settings": [
      {
        "title": "environment",
        "path": "",
        "text": "export OPENAI_API_BASE_URL={{url}}/v1\nexport OPENAI_API_KEY={{key}}\nexport ENABLE_OLLAMA_API=false\n"
      }
    ]
  },
  {
    "key": "litellm",
    "name": "LiteLLM",
    "context_min": 0,
    "context": 0,
    "output": 4096,
    "needs_tools": false,
    "start": "litellm --config litellm_config.yaml",
    "limits": [
      "The file is written into the working directory."
    ],
    "settings": [
      {
        "title": "litellm_config.yaml",
        "path": "litellm_config.yaml",
        "text": "model_list:\n  - model_name: \"{{model}}\"\n    litellm_params:\n      model: \"openai/{{model}}\"\n      api_base: \"{{url}}/v1\"\n{{?key}}      api_key: os.environ/PUNA_API_KEY\n{{!key}}      api_key: \"{{key}}\"\n    model_info:\n      max_input_tokens: {{context}}\n      max_output_tokens: {{output}}\n      supports_function_calling: {{tools}}\n"
      },
      {
        "title": "environment",
        "path": "",
        "text": "{{?key}}export PUNA_API_KEY={{key}}\n"
      }
    ]
  },
  {
    "key": "langchain",
    "name": "LangChain",
    "context_min": 0,
    "context": 0,
    "output": 4096,
    "needs_tools": false,
    "start": "",
    "limits": [
      "`ChatAnthropic` and `ChatOllama` work as well, with the same address without `/v1`."
    ],
    "settings": [
      {
        "title": "Python: langchain-openai",
        "path": "",
        "text": "{{?key}}import os\n{{?key}}\nfrom langchain_openai import ChatOpenAI\n\nmodel = ChatOpenAI(\n    model=\"{{model}}\",\n    base_url=\"{{url}}/v1\",\n{{?key}}    api_key=os.environ[\"PUNA_API_KEY\"],\n{{!key}}    api_key=\"{{key}}\",\n)\nprint(model.invoke(\"What is Puna?\").content)\n"
      }
    ]
  },
  {
    "key": "llamaindex",
    "name": "LlamaIndex",
    "context_min": 0,
    "context": 0,
    "output": 4096,
    "needs_tools": false,
    "start": "",
    "limits": [
      "`OpenAI` of LlamaIndex refuses names of models that it does not know: use `OpenAILike`."
    ],
    "settings": [
      {
        "title": "Python: llama-index-llms-openai-like",
        "path": "",
        "text": "{{?key}}import os\n{{?key}}\nfrom llama_index.llms.openai_like import OpenAILike\n\nmodel = OpenAILike(\n    model=\"{{model}}\",\n    api_base=\"{{url}}/v1\",\n{{?key}}    api_key=os.environ[\"PUNA_API_KEY\"],\n{{!key}}    api_key=\"{{key}}\",\n    context_window={{context}},\n    is_chat_model=True,\n{{?tools}}    is_function_calling_model=True,\n)\nprint(model.complete(\"What is Puna?\"))\n"
      }
    ]
  },
  {
    "key": "ai-sdk",
    "name": "Vercel AI SDK",
    "context_min": 0,
    "context": 0,
    "output": 4096,
    "needs_tools": false,
    "start": "",
    "limits": [
      "`@ai-sdk/openai` works as well: `createOpenAI` with the same `baseURL`."
    ],
    "settings": [
      {
        "title": "TypeScript: @ai-sdk/openai-compatible",
        "path": "",
        "text": "import { createOpenAICompatible } from \"@ai-sdk/openai-compatible\";\nimport { generateText } from \"ai\";\n\nconst puna = createOpenAICompatible({\n  name: \"puna\",\n  baseURL: \"{{url}}/v1\",\n{{?key}}  apiKey: process.env.PUNA_API_KEY,\n  includeUsage: true,\n});\nconst { text } = await generateText({ model: puna(\"{{model}}\"), prompt: \"What is Puna?\" });\nconsole.log(text);\n"
      }
    ]
  }
];
