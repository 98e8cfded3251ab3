"""Constraints as the server makes them, for an engine's vocabulary."""

import json
from typing import Any

from runner.core.grammar.constraint_text import ConstraintText
from runner.core.grammar.token_grammar import TokenGrammar
from runner.core.sequence.dry import Breakers
from runner.engine.contract.engine import TokenTable
from runner.serve.constraints import BREAKERS_DEFAULT, ConstraintReader


def grammar(text: str, vocabulary: TokenTable) -> TokenGrammar:
    found = ConstraintReader().read_now(ConstraintText(kind="grammar", text=text), None, vocabulary).grammar
    assert found is not None
    return found


def schema(value: Any, vocabulary: TokenTable) -> TokenGrammar:
    wanted = ConstraintText(kind="json_schema", text=json.dumps(value))
    found = ConstraintReader().read_now(wanted, None, vocabulary).grammar
    assert found is not None
    return found


def breakers(vocabulary: TokenTable, *texts: str) -> Breakers:
    found = ConstraintReader().read_now(None, texts or BREAKERS_DEFAULT, vocabulary).breakers
    assert found is not None
    return found
