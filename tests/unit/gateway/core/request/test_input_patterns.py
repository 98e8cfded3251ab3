"""Formats of free-text input as patterns that the grammar engine holds."""

import re

import pytest

from gateway.core.request.input_patterns import input_pattern
from gateway.core.request.portable_patterns import NotRegular
from runner.core.grammar.json_pattern import anchored_pattern

# The shape of the patches that coding agents write.
PATCHES = """start: begin hunk+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?   // the last line end may be missing
hunk: add | remove | update
add: "*** Add File: " filename LF line+
remove: "*** Delete File: " filename LF
update: "*** Update File: " filename LF move? change?
filename: /(.+)/
line: "+" /(.*)/ LF -> added
move: "*** Move to: " filename LF
change: (context | edited)+ eof?
context: ("@@" | "@@ " /(.+)/) LF
edited: ("+" | "-" | " ") /(.*)/ LF
eof: "*** End of File" LF

%import common.LF
"""


def lark(definition: str) -> str:
    return input_pattern({"type": "grammar", "syntax": "lark", "definition": definition})


def regex(definition: str) -> str:
    return input_pattern({"type": "grammar", "syntax": "regex", "definition": definition})


def matches(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text) is not None


@pytest.mark.parametrize(
    ("patch", "is_one"),
    [
        ("*** Begin Patch\n*** Add File: a\n+x\n+\n*** End Patch\n", True),
        ("*** Begin Patch\n*** Delete File: a\n*** Update File: b\n*** Move to: c\n@@ f\n-a\n c\n*** End Patch", True),
        ("*** Begin Patch\n*** Update File: b\n@@\n+y\n*** End of File\n*** End Patch", True),
        ("*** Begin Patch\n*** End Patch\n", False),
        ("*** Begin Patch\n*** Add File: a\n-x\n*** End Patch\n", False),
        ("Here it is:\n*** Begin Patch\n*** Delete File: a\n*** End Patch\n", False),
    ],
)
def test_a_grammar_of_patches_is_one_pattern(patch: str, is_one: bool) -> None:
    assert matches(lark(PATCHES), patch) is is_one


@pytest.mark.parametrize(
    ("definition", "good", "bad"),
    [
        ('start: "a" ~ 2..3 ["." INT]\n%import common.INT', "aaa.12", "a"),
        ('start: "a" ~ 2', "aa", "aaa"),
        ('start: DIGITS\nDIGITS.2: "0".."9"+', "007", "x"),
        ('start: pair ("," pair)*\n?pair: NAME "=" NUMBER\n%import common (CNAME, NUMBER)\nNAME: CNAME',
         "a=1,b=2.5e-3", "a=,"),
        ("start: TEXT\nTEXT: /a.b/s", "a\nb", "ab"),
        ("start: TEXT\nTEXT: /a.b/", "axb", "a\nb"),
        ('start: "x"\n  | "y" # two ways\n  |', "", "z"),
        ("start: ESCAPED_STRING WS\n%import common.ESCAPED_STRING\n%import common.WS -> WS", '"a\\"b" \n', '"a'),
        ('start: (("(" | "[")\n  "a")+', "(a[a", "(a["),
        ('start: "\\"\\\\\\n"', '"\\\n', "x"),
        ("start: COMMENT REST\nCOMMENT: /[ \\t]*\\/\\/ run:[^\\r\\n]*/\nREST: /[\\s\\S]+/", "// run: x\ny", "y"),
    ],
)  # fmt: skip
def test_lark(definition: str, good: str, bad: str) -> None:
    pattern = lark(definition)
    assert matches(pattern, good)
    assert not matches(pattern, bad)
    assert anchored_pattern(pattern)


@pytest.mark.parametrize(
    ("definition", "good", "bad"),
    [
        (r"^\d{4}-\d\d$", "2026-11", "26-11"),
        (r"(?P<year>\d+)|none", "none", "non"),
        (r"[^a-c\]]+?x{2,}", "yxx", "axx"),
        ("a.c", "abc", "a\nc"),
        (r"\x41\u00e9\/\.", "Aé/.", "Aé/x"),
    ],
)
def test_regex(definition: str, good: str, bad: str) -> None:
    pattern = regex(definition)
    assert matches(pattern, good)
    assert not matches(pattern, bad)
    assert anchored_pattern(pattern)


@pytest.mark.parametrize(
    "definition",
    [
        "a(?=b)", "(?i)x", r"\bx", r"(a)\1", "a++", "[[:alpha:]]", "[a&&b]", "[]a]", "^a|b$", "(", "a{,3}", "a" * 600,
        "x{2,1}", "(a*)*", "(a|)+", "((a?){2,})", "(*a", r"\p{L}", r"\x4", "[a", "(" * 20 + "a" + ")" * 20, "\\",
    ],
)  # fmt: skip
def test_what_no_engine_here_holds_is_not_regular(definition: str) -> None:
    with pytest.raises(NotRegular):
        regex(definition)


def doubling(depth: int) -> str:
    """A grammar whose text doubles with every rule."""
    rules = [f"r{number}: r{number + 1} r{number + 1}" for number in range(depth)]
    return "\n".join(["start: r0", *rules, f'r{depth}: "xy"'])


def chained(depth: int) -> str:
    """A grammar whose rules lie in each other, each with groups of its own."""
    rules = [f"r{number}: ((((r{number + 1}))))" for number in range(depth)]
    return "\n".join(["start: r0", *rules, f'r{depth}: "x"'])


@pytest.mark.parametrize(
    "definition",
    [
        'start: "(" start ")" | "x"', "start: missing", 'start: "a"\n%ignore " "', 'start: "A"i', "start: A\nA: /a/i",
        'begin: "a"', "start", ": x", 'start: "a', "start: ( \"a\"", 'start: "a" ]', "%import python.NAME\nstart: NAME",
        'start: "a".."bc"', 'start: "a" ~ x', 'start: _list{"a"}', 'start: "\\q"', doubling(30), "",
        "\n".join(f'r{number}: "a"' for number in range(300)), "start: " + "(" * 200 + '"a"' + ")" * 200,
        'start: "a"\n' + " " * 20_000, "start: ~ 3", 'start: "a"..', chained(70), 'start: ("a"*)*',
        "start: [WS]+\n%import common.WS",
    ],
)  # fmt: skip
def test_what_is_not_in_the_subset_of_lark_is_not_regular(definition: str) -> None:
    with pytest.raises(NotRegular):
        lark(definition)


@pytest.mark.parametrize("format_", [{}, {"type": "grammar"}, {"type": "grammar", "syntax": "bnf", "definition": "x"}])
def test_another_format_is_not_regular(format_: dict[str, object]) -> None:
    with pytest.raises(NotRegular):
        input_pattern(format_)
