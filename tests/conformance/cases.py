"""All cases in one table: the modules put theirs into it when they are imported."""

from tests.conformance import anthropic_cases, ollama_cases, openai_chat, openai_errors, openai_others
from tests.conformance.table import TABLE

MODULES = (anthropic_cases, ollama_cases, openai_chat, openai_errors, openai_others)
assert TABLE

__all__ = ["MODULES", "TABLE"]
