"""Grammars that begin later: free text, such as a model's reasoning, and then what is constrained. Pure.

The free text is part of the grammar: one lexeme up to its closing text. So whatever follows an answer, a resume too,
follows it through the free text like through the rest.
"""

from common.errors import InvalidRequest
from common.gbnf import literal
from runner.core.grammar.gbnf import LarkText

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


def after_free_text(lark: LarkText, root: str, *, opening: str, closing: str) -> str:
    """Add the rule of texts that end with one of rule `root`, behind the first `closing`; return its name.

    With an `opening` there may be no free text at all, and what there is begins with it.

    Raises:
        InvalidRequest: no `closing`, or one that is too long.
    """
    check_markers(opening, closing, param="free_text")
    end = "".join(f"\\x{{{ord(character):x}}}" for character in closing)
    free = lark.rule(f"/(?s:.*){end}/", lazy=True)
    space = rf"[ \t\r\n]{{0,{_SPACE_MAX}}}"
    text = f"root ::= ({literal(opening)} free {space})?" if opening else f"root ::= free {space}"
    return lark.rule(f"{lark.gbnf(text, param='free_text', parts={'free': free})} {root}")
