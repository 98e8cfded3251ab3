"""All clients in one table."""

from dataclasses import replace

from tools.clients.agents import CODE, FILE, Agent
from tools.clients.libraries import Library
from tools.clients.packages import Npm, Pip
from tools.clients.stage import Task

Client = Agent | Library

_RUN = f"python3 {FILE}"
_PATH = "{work}/" + FILE

_CODEX_OPTIONS = ("--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check")
_CODEX_SETTINGS = """\
model = "{model}"
model_provider = "puna"
model_context_window = 65536
[model_providers.puna]
name = "Puna"
base_url = "{url}/v1"
wire_api = "responses"
"""
_OPENCODE_SETTINGS = """\
{"autoupdate": false, "share": "disabled", "model": "puna/{model}", "small_model": "puna/{model}",
 "provider": {"puna": {"npm": "@ai-sdk/openai-compatible", "name": "Puna",
  "options": {"baseURL": "{url}/v1", "apiKey": "any"},
  "models": {"{model}": {"name": "{model}", "tool_call": true, "limit": {"context": 65536, "output": 8192}}}}}}
"""
_CONTINUE_SETTINGS = """\
name: Puna
version: 1.0.0
schema: v1
models:
  - name: {model}
    provider: openai
    model: {model}
    apiBase: {url}/v1
    apiKey: any
    roles: [chat, edit, apply]
    capabilities: [tool_use]
"""

AGENTS = (
    Agent(
        name="Claude Code",
        packages=Npm(name="claude-code", packages=("@anthropic-ai/claude-code",)),
        dialect="Messages",
        first=("claude", "--dangerously-skip-permissions", "-p", "{prompt}"),
        again=("claude", "--dangerously-skip-permissions", "--continue", "-p", "{prompt}"),
        environment={
            "IS_SANDBOX": "1",
            "ANTHROPIC_BASE_URL": "{url}",
            "ANTHROPIC_AUTH_TOKEN": "any",
            "ANTHROPIC_MODEL": "{model}",
            "ANTHROPIC_SMALL_FAST_MODEL": "{model}",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
        write=("Write", {"file_path": _PATH, "content": CODE}),
        run=("Bash", {"command": _RUN, "description": "Run it"}),
    ),
    Agent(
        name="Codex",
        packages=Npm(name="codex", packages=("@openai/codex",)),
        dialect="Responses",
        first=("codex", "exec", *_CODEX_OPTIONS, "{prompt}"),
        again=("codex", "exec", "resume", "--last", *_CODEX_OPTIONS, "{prompt}"),
        files={".codex/config.toml": _CODEX_SETTINGS},
        write=("exec_command", {"cmd": f"cat > {FILE} <<'END'\n{CODE}END"}),
        run=("exec_command", {"cmd": _RUN}),
        is_quick=True,
    ),
    Agent(
        name="opencode",
        packages=Npm(name="opencode", packages=("opencode-ai",)),
        dialect="Chat completions",
        first=("opencode", "run", "--model", "puna/{model}"),  # it puts an argument with blanks in quotes
        again=("opencode", "run", "--model", "puna/{model}", "--continue"),
        environment={"OPENCODE_DISABLE_MODELS_FETCH": "1"},
        files={".config/opencode/opencode.json": _OPENCODE_SETTINGS},
        write=("write", {"filePath": _PATH, "content": CODE}),
        run=("bash", {"command": _RUN, "description": "Run it"}),
    ),
    Agent(
        name="Qwen Code",
        packages=Npm(name="qwen-code", packages=("@qwen-code/qwen-code",)),
        dialect="Chat completions",
        first=("qwen", "--yolo", "--auth-type", "openai", "-p", "{prompt}"),
        again=("qwen", "--yolo", "--auth-type", "openai", "--continue", "-p", "{prompt}"),
        environment={"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "any", "OPENAI_MODEL": "{model}"},
        write=("write_file", {"file_path": _PATH, "content": CODE}),
        run=("run_shell_command", {"command": _RUN, "description": "Run it", "is_background": False}),
    ),
    Agent(
        name="Continue",
        packages=Npm(name="continue", packages=("@continuedev/cli",)),
        dialect="Chat completions",
        first=("cn", "--config", "{home}/config.yaml", "--auto", "-p", "{prompt}"),
        again=("cn", "--config", "{home}/config.yaml", "--auto", "--resume", "-p", "{prompt}"),
        files={"config.yaml": _CONTINUE_SETTINGS},
        write=("Write", {"filepath": _PATH, "content": CODE}),
        run=("Bash", {"command": _RUN}),
    ),
)

_TOOL, _STRUCTURED, _BY_TOOL = "tool call", "structured output", "structured output, by a tool"
_CHAT, _RESPONSES, _MESSAGES, _OLLAMA = "Chat completions", "Responses", "Messages", "Ollama"
_WHOLE = (False,)

_JS = Npm(
    name="javascript",
    packages=("ai", "@ai-sdk/openai-compatible", "@ai-sdk/anthropic", "zod", "langchain", "@langchain/core",
              "@langchain/openai", "@langchain/ollama"),
)  # fmt: skip

LIBRARIES = (
    Library(
        name="aider",
        packages=Pip(name="aider", packages=("aider-chat",)),
        script="aider_tasks.py",
        tasks=(Task(name="edit a file", dialect=_CHAT),),
    ),
    Library(
        name="llm",
        packages=Pip(name="llm", packages=("llm", "llm-ollama")),
        script="llm_tasks.py",
        tasks=(Task(name=_TOOL, dialect=_CHAT), Task(name=_TOOL, dialect=_OLLAMA)),
        environment={"OLLAMA_HOST": "{url}"},
        is_quick=True,
    ),
    Library(
        name="LangChain (Python)",
        packages=Pip(
            name="langchain", packages=("langchain", "langchain-openai", "langchain-anthropic", "langchain-ollama")
        ),
        script="langchain_tasks.py",
        tasks=(
            Task(name=_TOOL, dialect=_CHAT),
            Task(name=_TOOL, dialect=_RESPONSES),
            Task(name=_TOOL, dialect=_MESSAGES),
            Task(name=_TOOL, dialect=_OLLAMA),
            Task(name=_STRUCTURED, dialect=_CHAT, streams=_WHOLE),
            Task(name=_STRUCTURED, dialect=_MESSAGES, streams=_WHOLE),
            Task(name=_STRUCTURED, dialect=_OLLAMA, streams=_WHOLE),
            Task(name="embeddings", dialect=_OLLAMA, streams=_WHOLE),
        ),
    ),
    Library(
        name="LangChain (JavaScript)",
        packages=replace(_JS, packages=("langchain", *_JS.packages)),
        script="langchain_tasks.mjs",
        tasks=(
            Task(name=_TOOL, dialect=_CHAT),
            Task(name=_TOOL, dialect=_OLLAMA),
            Task(name=_STRUCTURED, dialect=_CHAT, streams=_WHOLE),
        ),
    ),
    Library(
        name="LlamaIndex",
        packages=Pip(
            name="llama-index",
            packages=(
                "llama-index-core",
                "llama-index-llms-openai-like",
                "llama-index-llms-ollama",
                "llama-index-embeddings-ollama",
            ),
        ),
        script="llama_index_tasks.py",
        tasks=(
            Task(name=_TOOL, dialect=_CHAT),
            Task(name=_TOOL, dialect=_OLLAMA),
            Task(name="embeddings", dialect=_OLLAMA, streams=_WHOLE),
        ),
    ),
    Library(
        name="Vercel AI SDK",
        packages=_JS,
        script="ai_tasks.mjs",
        tasks=(
            Task(name=_TOOL, dialect=_CHAT),
            Task(name=_TOOL, dialect=_MESSAGES),
            Task(name=_STRUCTURED, dialect=_CHAT),
        ),
    ),
    Library(
        name="pydantic-ai",
        packages=Pip(name="pydantic-ai", packages=("pydantic-ai-slim[openai,anthropic]",)),
        script="pydantic_ai_tasks.py",
        tasks=(
            Task(name=_TOOL, dialect=_CHAT),
            Task(name=_TOOL, dialect=_RESPONSES),
            Task(name=_TOOL, dialect=_MESSAGES),
            Task(name=_STRUCTURED, dialect=_CHAT, streams=_WHOLE),
            Task(name=_BY_TOOL, dialect=_CHAT, streams=_WHOLE),
        ),
    ),
    Library(
        name="openai-agents",
        packages=Pip(name="openai-agents", packages=("openai-agents",)),
        script="openai_agents_tasks.py",
        tasks=(Task(name=_TOOL, dialect=_CHAT), Task(name=_TOOL, dialect=_RESPONSES)),
    ),
    Library(
        name="LiteLLM SDK",
        packages=Pip(name="litellm", packages=("litellm", "mcp")),
        script="litellm_tasks.py",
        tasks=(
            Task(name=_TOOL, dialect=_CHAT),
            Task(name=_TOOL, dialect=_MESSAGES),
            Task(name=_TOOL, dialect=_OLLAMA),
            Task(name="overflow", dialect=_CHAT, streams=_WHOLE),
        ),
    ),
    Library(
        name="LiteLLM proxy",
        packages=Pip(name="litellm-proxy", packages=("litellm[proxy]",)),
        script="litellm_proxy_tasks.py",
        tasks=(Task(name=_TOOL, dialect=_CHAT),),
    ),
    Library(
        name="instructor",
        packages=Pip(name="instructor", packages=("instructor",)),
        script="instructor_tasks.py",
        tasks=(Task(name=_STRUCTURED, dialect=_CHAT), Task(name=_BY_TOOL, dialect=_CHAT)),
    ),
    Library(
        name="DSPy",
        packages=Pip(name="dspy", packages=("dspy",)),
        script="dspy_tasks.py",
        tasks=(Task(name=_TOOL, dialect=_CHAT, streams=_WHOLE),),
    ),
    Library(
        name="Haystack",
        packages=Pip(name="haystack", packages=("haystack-ai",)),
        script="haystack_tasks.py",
        tasks=(Task(name=_TOOL, dialect=_CHAT),),
    ),
    Library(
        name="smolagents",
        packages=Pip(name="smolagents", packages=("smolagents[openai]",)),
        script="smolagents_tasks.py",
        tasks=(Task(name=_TOOL, dialect=_CHAT),),
    ),
    Library(
        name="chromadb",
        packages=Pip(name="chromadb", packages=("chromadb", "ollama", "openai")),
        script="chromadb_tasks.py",
        tasks=(
            Task(name="embeddings", dialect="Embeddings", streams=_WHOLE),
            Task(name="embeddings", dialect=_OLLAMA, streams=_WHOLE),
        ),
    ),
    Library(
        name="GuideLLM",
        packages=Pip(name="guidellm", packages=("guidellm",)),
        script="guidellm_tasks.py",
        tasks=(Task(name=_TOOL, dialect=_CHAT),),
    ),
    Library(
        name="Open WebUI",
        packages=Pip(name="open-webui", packages=("open-webui",)),
        script="open_webui_tasks.py",
        tasks=(
            Task(name=_TOOL, dialect=_CHAT),
            Task(name=_TOOL, dialect=_OLLAMA),
        ),
    ),
)
CLIENTS: tuple[Client, ...] = (*AGENTS, *LIBRARIES)
