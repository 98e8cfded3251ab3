"""Small grammars of every shape, at random."""

import random

NAMES = ("root", "one", "two")
_ATOMS = ('"a"', '"b"', '"ab"', '"é"', "[a-c]", "[^ab]", '"ba" "b"', '""')


def random_grammars(count: int) -> list[str]:
    return [_grammar(random.Random(seed)) for seed in range(count)]


def _grammar(draw: random.Random) -> str:
    # Each rule has a way to end.
    return "\n".join(f"{name} ::= {draw.choice(_ATOMS)} | {_alternatives(draw, 2)}" for name in NAMES) + "\n"


def _alternatives(draw: random.Random, depth: int) -> str:
    return " | ".join(_sequence(draw, depth) for _ in range(draw.randint(1, 3)))


def _sequence(draw: random.Random, depth: int) -> str:
    # Something is read first, so that no rule begins with itself: llama.cpp refuses that.
    parts = [draw.choice(_ATOMS[:-1]), *(_item(draw, depth) for _ in range(draw.randint(0, 2)))]
    return " ".join(parts)


def _item(draw: random.Random, depth: int) -> str:
    kind = draw.random()
    if kind < 0.35:
        return draw.choice(_ATOMS)
    if kind < 0.7 or not depth:
        return draw.choice(NAMES)
    return f"({_alternatives(draw, depth - 1)})" + draw.choice(("", "?", "*", "+", "{2}", "{1,3}", "{2,}"))
