"""Tokens of a vocabulary as llguidance takes them, and its compilation of a grammar within limits.

llguidance reports errors and exceeded limits as states of a matcher, which never end the process.
"""

from collections.abc import Callable, Sequence

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

_LIMITS = LLParserLimits(
    initial_lexer_fuel=500_000,  # of a compilation; about 50,000 a millisecond
    step_lexer_fuel=200_000,  # of a mask; about 14,000 a millisecond
    step_max_items=500_000,  # of a mask; about 20,000 a millisecond
    max_items_in_row=2_000,
    max_lexer_states=50_000,  # about 2 kB each
    max_grammar_size=200_000,
    verbose_errors=False,
)
# Tokens that are allowed at once where all of them may follow, as in a string of JSON. llguidance's own sets double the
# time to build the tree (296 ms for 128,256 tokens), and help strings of limited length alone (1.3, not 2.8 ms).
_TOKEN_SETS = [r'[^"\\\x00-\x1F\x7F]+']
_ERROR_CHARACTERS_MAX = 300


class _Pieces:
    """The tokens of a vocabulary as llguidance asks for them: those without bytes never come up."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes]) -> None:
        # Ends of answers are known by the grammar's state, so one token that no model has stands for all of them.
        self.tokens = [*tokens, b"\xff<end>"]
        self.eos_token_id = len(tokens)
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, _text: bytes) -> list[int]:
        return []  # asked only where text is forced, which is switched off


class TokenTree:
    """The tokens of a vocabulary by their bytes; those without bytes or with a zero are in no constrained answer."""

    def __init__(self, pieces: Sequence[bytes], tokenize: Callable[[bytes], list[int]] | None = None) -> None:
        """`tokenize` is that of the vocabulary; None: `split` knows no tokens."""
        self.size = len(pieces)
        self.pieces = pieces
        self._tokenize = tokenize
        tokens = [b"" if 0 in piece else piece for piece in pieces]
        self.tokenizer = LLTokenizer(TokenizerWrapper(_Pieces(tokens)), slices=_TOKEN_SETS)

    def split(self, before: int, text: bytes) -> list[int]:
        """Return the tokens that the vocabulary writes `text` in; empty: it would join it to the token `before`."""
        if self._tokenize is None or not 0 <= before < self.size:
            return []
        head = self.pieces[before]
        ids = self._tokenize(head + text)
        # Some vocabularies put a space before every text.
        start = sum(len(self.pieces[token_id]) for token_id in ids) - len(text)
        for place, token_id in enumerate(ids):
            if start <= 0:
                return ids[place:] if start == 0 else []
            start -= len(self.pieces[token_id])
        return []


def compile_grammar(text: str, tree: TokenTree) -> LLMatcher:
    """Compile a grammar in Lark's notation; the matcher knows whether that failed."""
    return LLMatcher(tree.tokenizer, LLMatcher.grammar_from_lark(text), log_level=0, limits=_LIMITS)


def grammar_error(text: str, tree: TokenTree) -> str:
    """Return why a grammar in Lark's notation cannot be used; empty: it can."""
    return error_text(compile_grammar(text, tree))


def error_text(matcher: LLMatcher) -> str:
    """Return the error of a matcher; empty: it has none."""
    lines = [line for line in matcher.get_error().splitlines() if line.strip()]
    return (lines[0] if lines else "").rpartition("failed to compile JSON schema: ")[2][:_ERROR_CHARACTERS_MAX]
