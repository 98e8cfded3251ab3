"""llm, with the models of OpenAI's form that its settings name, and with its plugin for Ollama."""

import llm
from task import MODEL, STREAM, TOOL_QUESTION, URL, check_tool, double, run


def chat_completions_tool_call() -> None:
    settings = llm.user_dir() / "extra-openai-models.yaml"
    settings.write_text(
        f"- model_id: puna\n  model_name: {MODEL}\n  api_base: {URL}/v1\n  supports_tools: true\n  api_key_name: none\n"
    )
    _ask("puna")


def ollama_tool_call() -> None:
    _ask(f"ollama/{MODEL}")


def _ask(name: str) -> None:
    model = llm.get_model(name)
    model.key = "any"
    pieces = list(model.chain(TOOL_QUESTION, tools=[double], stream=STREAM))
    check_tool("".join(pieces), pieces=len(pieces))


run(chat_completions_tool_call, ollama_tool_call)
