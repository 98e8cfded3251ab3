"""Output syntax that a manifest's `parser` names, in the words of Ollama's registry. Pure."""

from gateway.core.output_parsers.syntax import OutputSyntax, syntax_of

# Text that shows a parser's markers as a template does, by the beginning of its name; the longest counts.
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


def syntax_of_parser(parser: str) -> OutputSyntax | None:
    """Return the markers of a manifest's parser; None: unknown name, so the template decides."""
    name = parser.lower()
    if name == _PLAIN:
        return OutputSyntax()
    known = [prefix for prefix in _TELLTALES if name.startswith(prefix)]
    return syntax_of(_TELLTALES[max(known, key=len)], has_tools=False) if known else None
