"""Bytes, layers and room. Numbers in, numbers out."""
