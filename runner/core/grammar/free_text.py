"""Grammars that begin later: free text, such as a model's reasoning, and then what is constrained. Pure.

The free text is part of the grammar: one place for each beginning of its closing text. So whatever follows an answer,
a resume too, follows it through the free text like through the rest.
"""

from common.errors import InvalidRequest
from common.gbnf import literal, text_until
from runner.core.grammar.rules import GrammarRules, moved
from runner.core.grammar.text import parse_grammar

MARKER_CHARS_MAX = 128
# White space between the free text and what is constrained.
_SPACE_MAX = 16


def check_markers(opening: str, closing: str, *, param: str) -> None:
    """Check the texts around a part of an answer.

    Raises:
        InvalidRequest: no `closing`, or one that is too long.
    """
    if not closing or max(len(opening), len(closing)) > MARKER_CHARS_MAX:
        raise InvalidRequest(
            f"{param} must have a closing text, and texts of at most {MARKER_CHARS_MAX} characters", param=param
        )


def after_free_text(rules: GrammarRules, *, opening: str, closing: str) -> GrammarRules:
    """Return the grammar of texts that end with one of `rules`, behind the first `closing`.

    With an `opening` there may be no free text at all, and what there is begins with it.

    Raises:
        InvalidRequest: no `closing`, or one that is too long.
    """
    check_markers(opening, closing, param="free_text")
    free = parse_grammar(_notation(opening, closing), param="free_text")
    offset = len(free.rules)
    whole = GrammarRules(rules=[*free.rules, *(moved(rule, offset) for rule in rules.rules)])
    whole.root = len(whole.rules)
    whole.rules.append([(free.root, rules.root + offset)])
    return whole


def _notation(opening: str, closing: str) -> str:
    space = rf"[ \t\r\n]{{0,{_SPACE_MAX}}}"
    root = f'{literal(opening)} free-0 {space} | ""' if opening else f"free-0 {space}"
    return "\n".join([f"root ::= {root}", *text_until("free", closing)]) + "\n"
