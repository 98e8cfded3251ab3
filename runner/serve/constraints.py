"""What a request wants its answer to match, made ready beside the engine thread: grammars, schemas, DRY's breakers."""

import asyncio
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from common.errors import InvalidRequest
from protos import runner_pb2
from runner.core.dry import Breakers, find_breakers
from runner.core.grammar import Grammar
from runner.core.grammar_text import parse_grammar
from runner.core.json_schema_grammar import schema_to_grammar
from runner.core.token_grammar import GrammarCursor, TokenGrammar
from runner.core.token_trie import TokenTrie
from runner.engine.engine import TokenTable

# Grammars that are kept with all that answers found out about them.
KEPT_MAX = 32
BREAKERS_DEFAULT = ("\n", ":", '"', "*")
BREAKERS_MAX = 32
BREAKER_BYTES_MAX = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Ready for the engine."""

    grammar: TokenGrammar | None = None
    breakers: Breakers | None = None  # None: DRY is off


class ConstraintReader:
    """Reads one constraint at a time in a thread of its own: a large one takes time from no stream but its own."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="constraints")
        self._lock = threading.Lock()
        self._trie: TokenTrie | None = None
        self._grammars: OrderedDict[tuple[str, str], TokenGrammar] = OrderedDict()
        self._breakers: OrderedDict[tuple[str, ...], Breakers] = OrderedDict()

    async def read(self, request: runner_pb2.GenerateRequest, vocabulary: TokenTable) -> Constraints:
        """What a request asks for; at once where it asks for nothing or for what is known.

        Raises:
            InvalidRequest: it cannot be read or is too large; names the field.
        """
        kind = request.WhichOneof("constraint")
        dry = request.sampling.dry_multiplier > 0.0
        if kind is None and not dry:
            return Constraints()
        breakers = tuple(request.sampling.dry_sequence_breakers) or BREAKERS_DEFAULT
        if dry:
            check_breakers(breakers)
        key = (kind, getattr(request, kind)) if kind is not None else None
        grammar = self._grammars.get(key) if key is not None else None
        known = self._breakers.get(breakers) if dry else None
        if (key is None or grammar is not None) and (not dry or known is not None):
            return Constraints(grammar=grammar, breakers=known)
        loop = asyncio.get_running_loop()
        resumed = tuple(request.resume_token_ids)
        return await loop.run_in_executor(
            self._thread, self.read_now, key, breakers if dry else None, vocabulary, resumed
        )

    def read_now(
        self,
        key: tuple[str, str] | None,
        breakers: tuple[str, ...] | None,
        vocabulary: TokenTable,
        resumed: tuple[int, ...] = (),
    ) -> Constraints:
        """As `read`, in the caller's thread. `resumed` tokens are followed here, so that the engine need not."""
        grammar = self._grammar(key, vocabulary, resumed) if key is not None else None
        return Constraints(grammar=grammar, breakers=self._find_breakers(breakers, vocabulary) if breakers else None)

    def _grammar(self, key: tuple[str, str], vocabulary: TokenTable, resumed: tuple[int, ...]) -> TokenGrammar:
        with self._lock:
            known = self._grammars.get(key)
            if known is None:
                kind, text = key
                notation = schema_to_grammar(text) if kind == "json_schema" else text
                if self._trie is None:
                    # A control token has no text that a reader sees, so it can be no part of what matches.
                    self._trie = TokenTrie(vocabulary.pieces, excluded=vocabulary.control | vocabulary.end_tokens)
                grammar = Grammar(parse_grammar(notation, param=kind))
                known = TokenGrammar(
                    grammar, self._trie, pieces=vocabulary.pieces, end_tokens=vocabulary.end_tokens, param=kind
                )
                if resumed and max(resumed) < vocabulary.size:
                    _ = GrammarCursor(known, resumed=resumed).complete
                self._grammars[key] = known
                if len(self._grammars) > KEPT_MAX:
                    self._grammars.popitem(last=False)
            return known

    def _find_breakers(self, texts: tuple[str, ...], vocabulary: TokenTable) -> Breakers:
        with self._lock:
            known = self._breakers.get(texts)
            if known is None:

                def tokenize(text: bytes) -> list[int]:
                    return vocabulary.tokenize(text, parse_special=False)

                known = self._breakers[texts] = find_breakers(texts, pieces=vocabulary.pieces, tokenize=tokenize)
                if len(self._breakers) > KEPT_MAX:
                    self._breakers.popitem(last=False)
            return known


def check_breakers(texts: tuple[str, ...]) -> None:
    """Refuse breakers that are too many or too long.

    Raises:
        InvalidRequest: names the field.
    """
    if len(texts) > BREAKERS_MAX or not all(1 <= len(text.encode()) <= BREAKER_BYTES_MAX for text in texts):
        raise InvalidRequest(
            f"dry_sequence_breakers must be at most {BREAKERS_MAX} texts of 1 to {BREAKER_BYTES_MAX} bytes",
            param="dry_sequence_breakers",
        )
