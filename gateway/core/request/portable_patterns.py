"""Regular expressions of Python and Rust in the spelling that the patterns of JSON schemas have. Pure."""

import re

from common.spec.schema_limits import PATTERN_LENGTH_MAX

ANY_BUT_LINE_END = "[^\\n]"
_CLASSES = "dDwWsS"
_QUANTIFIER = re.compile(r"[*+?]|\{\d{1,3}(,\d{0,3})?\}")
_GROUP = re.compile(r"\((\?:|\?P?<[A-Za-z_]\w*>)?")


class NotRegular(Exception):
    """A format that no supported regular expression says."""


def unanchored(definition: str) -> str:
    """Return a regular expression without the anchors around it: the whole input must match in any case."""
    if definition.startswith("^") and definition.endswith("$") and "|" not in definition:
        return definition[1:-1]
    return definition


def portable(regex: str, *, dot: str = ANY_BUT_LINE_END) -> str:
    """Return a regular expression of Python or Rust in the spelling that JSON schemas have.

    Raises:
        NotRegular: anchors, borders, references, looking around, flags, or an operator of one dialect alone.
    """
    if len(regex) > PATTERN_LENGTH_MAX:
        raise NotRegular("the pattern is too long")
    out: list[str] = []
    groups: list[int] = []  # where in `out` those that are open begin
    at = last = 0  # `last`: where in `out` the last element begins
    repeated = False  # the last element has its quantifier
    while at < len(regex):
        if quantifier := _QUANTIFIER.match(regex, at):
            if repeated and quantifier[0] != "?":
                raise NotRegular("possessive quantifiers")
            check_loop("".join(out[last:]), quantifier[0])
            out.append(quantifier[0])
            at, repeated = quantifier.end(), True
            continue
        last = len(out)
        piece, at = _element(regex, at, dot)
        if piece == "(?:":
            groups.append(last)
        elif piece == ")":
            last = groups.pop() if groups else last
        out.append(piece)
        repeated = False
    return "".join(out)


def check_loop(element: str, quantifier: str) -> None:
    """Refuse a repetition without end of what may be empty: no grammar has a loop around nothing.

    Raises:
        NotRegular: it is one, or the element cannot be read.
    """
    if quantifier in ("*", "+") or quantifier.endswith(",}"):
        try:
            is_empty = re.fullmatch(element, "") is not None
        except (re.error, OverflowError) as error:
            raise NotRegular(str(error)) from error
        if is_empty:
            raise NotRegular("a loop around nothing")


def _element(regex: str, at: int, dot: str) -> tuple[str, int]:
    match regex[at]:
        case "\\":
            return _escape(regex, at)
        case "[":
            return _character_class(regex, at)
        case ".":
            return dot, at + 1
        case "^" | "$" | "{":
            raise NotRegular("anchors, or a repetition without counts")
        case "(":
            named = _GROUP.match(regex, at)
            assert named is not None, "a parenthesis stands there"
            if not named[1] and regex[at + 1 : at + 2] == "?":
                raise NotRegular("looking around, or flags")
            return "(?:", named.end()
    return regex[at], at + 1


def _escape(regex: str, at: int) -> tuple[str, int]:
    kind = regex[at + 1 : at + 2]
    if kind in ("x", "u"):
        end = at + (4 if kind == "x" else 6)
        if not re.fullmatch(r"[0-9a-fA-F]+", regex[at + 2 : end]) or len(regex) < end:
            raise NotRegular("an escape without digits")
        return regex[at:end], end
    if not kind or (kind.isalnum() and kind not in _CLASSES + "nrtfv"):
        raise NotRegular(f"\\{kind}")
    return regex[at : at + 2], at + 2


def _character_class(regex: str, at: int) -> tuple[str, int]:
    begin = at
    at += 2 if regex[at + 1 : at + 2] == "^" else 1
    if regex[at : at + 1] == "]":
        raise NotRegular("a class that begins with its end")
    while at < len(regex) and regex[at] != "]":
        if regex[at] == "[" or regex[at : at + 2] in ("&&", "--", "~~"):
            raise NotRegular("operators in a class")
        at = _escape(regex, at)[1] if regex[at] == "\\" else at + 1
    return regex[begin : at + 1], at + 1
