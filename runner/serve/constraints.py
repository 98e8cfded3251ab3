"""Constraints of a request, prepared beside the engine thread: grammars, schemas, DRY's breakers."""

import asyncio
import json
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from time import thread_time
from typing import Generic, TypeVar

from common.errors import InvalidRequest
from protos import runner_pb2
from runner.core.grammar.free_text import after_free_text
from runner.core.grammar.gbnf import LarkText
from runner.core.grammar.json_merge import TYPES, refusal
from runner.core.grammar.json_schema import guided_schema
from runner.core.grammar.token_grammar import GrammarCursor, TokenGrammar, TokenTree, grammar_error
from runner.core.sequence.dry import Breakers, find_breakers
from runner.core.sequence.reasoning_budget import ReasoningBudget, reasoning_budget
from runner.engine.contract.engine import TokenTable

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

# Grammars that are kept with all that answers found out about them, of all tenants together.
KEPT_MAX = 32
# Trees of the vocabulary, one for each set of control tokens that constraints use.
TREES_MAX = 4
BREAKERS_DEFAULT = ("\n", ":", '"', "*")
BREAKERS_MAX = 32
BREAKER_BYTES_MAX = 40


class TenantCache(Generic[Key, Value]):
    """At most `most` things. One too many is the oldest of the tenant that has the most; tenants are cache salts.

    May be read while another thread puts something in.
    """

    def __init__(self, most: int) -> None:
        """Empty."""
        self._most = most
        self._kept: OrderedDict[tuple[str, Key], Value] = OrderedDict()

    def get(self, salt: str, key: Key) -> Value | None:
        """Return a tenant's value for a key, or None."""
        return self._kept.get((salt, key))

    def get_or_make(self, salt: str, key: Key, make: Callable[[], Value]) -> Value:
        """Return a tenant's value for a key; a new one is kept."""
        known = self.get(salt, key)
        if known is None:
            known = self._kept[salt, key] = make()
            if len(self._kept) > self._most:
                counts = Counter(kept_salt for kept_salt, _ in self._kept)
                highest = max(counts.values())
                del self._kept[next(one for one in self._kept if counts[one[0]] == highest)]
        return known


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintText:
    """Constraint of a request as received; equal ones are read once."""

    kind: str
    text: str
    free_text: tuple[str, str] | None = None  # opening and closing
    schemas: tuple[tuple[str, str], ...] = ()
    lenient: frozenset[str] = frozenset()
    token_ids: frozenset[int] = frozenset()


def constraint_of(request: runner_pb2.GenerateRequest) -> ConstraintText | None:
    """Return the constraint of a request, if it has one."""
    kind = request.WhichOneof("constraint")
    if kind is None:
        return None
    free = request.free_text
    return ConstraintText(
        kind=kind,
        text=request.grammar if kind == "grammar" else request.json_schema,
        free_text=(free.opening, free.closing) if request.HasField("free_text") else None,
        schemas=tuple(sorted(request.grammar_schemas.items())),
        lenient=frozenset(request.lenient_schemas),
        token_ids=frozenset(request.constraint_token_ids),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConstraints:
    """Ready for the engine."""

    grammar: TokenGrammar | None = None
    breakers: Breakers | None = None  # None: DRY is off
    reasoning: ReasoningBudget | None = None


class ConstraintReader:
    """Reads one constraint at a time in a thread of its own: a large one takes time from no stream but its own."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="constraints")
        self._lock = threading.Lock()
        self._trees: OrderedDict[frozenset[int], TokenTree] = OrderedDict()  # by the control tokens in them
        self._grammars: TenantCache[ConstraintText, TokenGrammar] = TenantCache(KEPT_MAX)
        self._breakers: TenantCache[tuple[str, ...], Breakers] = TenantCache(KEPT_MAX)

    async def read(self, request: runner_pb2.GenerateRequest, vocabulary: TokenTable) -> EngineConstraints:
        """Read the constraints of a request; at once where there are none or where they are known.

        Raises:
            InvalidRequest: it cannot be read or is too large; names the field.
        """
        found = await self._read(request, vocabulary)
        return (
            replace(found, reasoning=budget_of(request, vocabulary)) if request.HasField("reasoning_budget") else found
        )

    async def _read(self, request: runner_pb2.GenerateRequest, vocabulary: TokenTable) -> EngineConstraints:
        key = constraint_of(request)
        dry = request.sampling.dry_multiplier > 0.0
        if key is None and not dry:
            return EngineConstraints()
        breakers = tuple(request.sampling.dry_sequence_breakers) or BREAKERS_DEFAULT
        if dry:
            check_breakers(breakers)
        salt = request.cache_salt
        grammar = self._grammars.get(salt, key) if key is not None else None
        known = self._breakers.get(salt, breakers) if dry else None
        if (key is None or grammar is not None) and (not dry or known is not None):
            return EngineConstraints(grammar=grammar, breakers=known)
        loop = asyncio.get_running_loop()
        resumed = tuple(request.resume_token_ids)
        return await loop.run_in_executor(
            self._thread, self.read_now, key, breakers if dry else None, vocabulary, resumed, salt
        )

    def read_now(
        self,
        key: ConstraintText | None,
        breakers: tuple[str, ...] | None,
        vocabulary: TokenTable,
        resumed: tuple[int, ...] = (),
        salt: str = "",
    ) -> EngineConstraints:
        """As `read`, in the caller's thread. `resumed` tokens are followed here, so that the engine need not."""
        grammar: TokenGrammar | None = None
        found: Breakers | None = None
        with self._lock:
            if key is not None:
                grammar = self._grammars.get_or_make(salt, key, partial(self._new_grammar, key, vocabulary, resumed))
            if breakers:
                tokenize = partial(vocabulary.tokenize, parse_special=False)
                made = partial(find_breakers, breakers, pieces=vocabulary.pieces, tokenize=tokenize)
                found = self._breakers.get_or_make(salt, breakers, made)
        return EngineConstraints(grammar=grammar, breakers=found)

    def _new_grammar(self, key: ConstraintText, vocabulary: TokenTable, resumed: tuple[int, ...]) -> TokenGrammar:
        tree = self._tree(key.token_ids, vocabulary)
        made = TokenGrammar(
            lark_text(key, tree), tree, end_tokens=vocabulary.end_tokens, cpu_s=thread_time, param=key.kind
        )
        if resumed and max(resumed) < vocabulary.size:
            GrammarCursor(made, resumed=resumed).allowed()
        return made

    def _tree(self, token_ids: frozenset[int], vocabulary: TokenTable) -> TokenTree:
        known = self._trees.get(token_ids)
        if known is None:
            # A control token has no text that a reader sees, so it can be no part of what matches, unless the caller
            # says that its readers see it.
            excluded = (vocabulary.control - token_ids) | vocabulary.end_tokens
            known = self._trees[token_ids] = TokenTree(vocabulary.pieces, excluded=excluded)
            if len(self._trees) > TREES_MAX:
                self._trees.popitem(last=False)
        return known


def budget_of(request: runner_pb2.GenerateRequest, vocabulary: TokenTable) -> ReasoningBudget:
    """Return the reasoning limit of an answer.

    Raises:
        InvalidRequest: the texts around its reasoning cannot be used.
    """
    asked = request.reasoning_budget
    tokenize = partial(vocabulary.tokenize, parse_special=True)
    return reasoning_budget(asked.opening, asked.closing, asked.tokens_max, tokenize=tokenize, pieces=vocabulary.pieces)


def lark_text(key: ConstraintText, tree: TokenTree) -> str:
    """Write a constraint as one grammar for llguidance.

    Raises:
        InvalidRequest: it cannot be read or is too large; names the field.
    """
    lark = LarkText()
    if key.kind == "json_schema":
        root = lark.rule(f"%json {guided_schema(key.text)}")
    else:
        parts = {name: lark.rule(_schema(text, tree, lenient=name in key.lenient)) for name, text in key.schemas}
        root = lark.gbnf(key.text, param=key.kind, parts=parts)
    if key.free_text is not None:
        root = after_free_text(lark, root, opening=key.free_text[0], closing=key.free_text[1])
    return lark.whole(root)


def _schema(text: str, tree: TokenTree, *, lenient: bool) -> str:
    try:
        body = f"%json {guided_schema(text)}"
        if error := grammar_error(f"start: {body}", tree):
            raise refusal(error)
    except InvalidRequest:
        if not lenient:
            raise
        body = f"%json {guided_schema(_type_alone(text))}"
    return body


def _type_alone(text: str) -> str:
    """Return a schema that says no more than the type of another one.

    Raises:
        InvalidRequest: it is no schema at all.
    """
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidRequest("json_schema cannot be used: it is not JSON", param="json_schema") from None
    kind = schema.get("type") if isinstance(schema, dict) else None
    return json.dumps({"type": kind} if isinstance(kind, str) and kind in TYPES else {})


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
