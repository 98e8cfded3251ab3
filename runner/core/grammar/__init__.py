"""Grammars over bytes and tokens, and JSON schemas as grammars. Pure."""
