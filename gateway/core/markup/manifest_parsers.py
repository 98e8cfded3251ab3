"""The markup that a manifest's `parser` names, in the words of Ollama's registry. Pure."""

from gateway.core.markup.forms import Markup, markup_of

# Text from which a parser's markup is told as from a template, by the beginning of its name; the longest counts.
_TELLTALES = {
    "harmony": "<|channel|>",
    "gpt-oss": "<|channel|>",
    "gptoss": "<|channel|>",
    "hermes": "<tool_call>",
    "qwen3": "<think></think><tool_call>",
    "qwen3-coder": "<tool_call><function=",
    "qwen3.5": "<think></think><tool_call><function=",
    "deepseek": "<think></think><｜tool▁calls▁begin｜>",
    "llama3": "<|python_tag|>",
    "mistral": "[TOOL_CALLS][ARGS]",
    "ministral": "[THINK][/THINK][TOOL_CALLS][ARGS]",
    "kimi": "<think></think><|tool_calls_section_begin|>",
    "glm": "<think></think><tool_call><arg_key>",
    "lfm2": "<|tool_call_start|>",
    "lfm2-thinking": "<think></think><|tool_call_start|>",
    "gemma4": "<|channel>thought<channel|><|tool_call>",
    "minimax": "<think></think><minimax:tool_call>",
    "nemotron": "<think></think><tool_call><function=",
}
_PLAIN = "passthrough"


def markup_of_parser(parser: str) -> Markup | None:
    """What models with this parser write; None: nobody knows the name, so the template tells."""
    name = parser.lower()
    if name == _PLAIN:
        return Markup()
    known = [prefix for prefix in _TELLTALES if name.startswith(prefix)]
    return markup_of(_TELLTALES[max(known, key=len)], has_tools=False) if known else None
