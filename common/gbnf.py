"""Pieces of grammars in llama.cpp's notation (GBNF). Pure."""


def literal(text: str) -> str:
    """Return a grammar element that matches this text."""
    return f'"{_escaped(text)}"'


def text_until(name: str, closing: str) -> list[str]:
    """Lines that define rule `name`-0: any text up to the first occurrence of `closing`, which is part of it.

    There is one rule for each beginning of `closing`, so following the text takes one place.
    """
    characters = sorted(set(closing))
    lines = []
    for matched in range(len(closing)):
        ways = [f"[^{_escaped(''.join(characters))}] {name}-0"]
        for character in characters:
            reached = _matched(closing, closing[:matched] + character)
            ways.append(literal(character) + ("" if reached == len(closing) else f" {name}-{reached}"))
        lines.append(f"{name}-{matched} ::= " + " | ".join(ways))
    return lines


def _matched(closing: str, text: str) -> int:
    """Return the number of last characters that are a beginning of `closing`."""
    return next(count for count in range(min(len(text), len(closing)), -1, -1) if text.endswith(closing[:count]))


def _escaped(text: str) -> str:
    return "".join(f"\\U{ord(character):08X}" for character in text)
