"""Constraints of a request, prepared beside the engine thread: grammars, schemas, DRY's breakers."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter, thread_time
from weakref import WeakValueDictionary

from common.errors import InvalidRequest
from common.telemetry.logs import get_logger
from common.tenant_cache import TenantCache
from protos import runner_pb2
from runner.core.grammar.constraint_text import LARK_BYTES_MAX, ConstraintText, lark_text
from runner.core.grammar.token_grammar import GrammarCursor, TokenGrammar
from runner.core.grammar.token_tree import TokenTree
from runner.core.sequence.dry import Breakers, find_breakers
from runner.core.sequence.reasoning_budget import ReasoningBudget, reasoning_budget
from runner.engine.contract.engine import TokenTable
from runner.priorities import give_way

log = get_logger()

# Grammars that are kept with all that answers found out about them, of all tenants together.
KEPT_MAX = 32
BREAKERS_DEFAULT = ("\n", ":", '"', "*")
BREAKERS_MAX = 32
BREAKER_BYTES_MAX = 40


def constraint_of(request: runner_pb2.GenerateRequest) -> ConstraintText | None:
    """Return the constraint of a request, if it has one.

    Raises:
        InvalidRequest: its converted text is too long.
    """
    kind = request.WhichOneof("constraint")
    if kind is None:
        return None
    if lark := request.constraint_lark:
        if len(lark.encode()) > LARK_BYTES_MAX:
            raise InvalidRequest(
                f"constraint_lark is longer than {LARK_BYTES_MAX} bytes; leave it empty", param="constraint_lark"
            )
        return ConstraintText(kind=kind, text="", lark=lark, token_ids=frozenset(request.constraint_token_ids))
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
    """Reads constraints in threads of its own, one at a time for each tenant: a large one delays no other tenant.

    What takes too long was refused by the gateway (`runner.check_constraints`): a thread cannot be ended.
    """

    def __init__(self) -> None:
        self._quick = ThreadPoolExecutor(max_workers=1, thread_name_prefix="constraints")
        self._slow = ThreadPoolExecutor(max_workers=1, thread_name_prefix="slow-constraints", initializer=give_way)
        self._lanes: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by salt
        self._lock = threading.Lock()  # of the tree
        self._tree: TokenTree | None = None
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
        async with self._lanes.setdefault(salt, asyncio.Lock()):
            threads = self._slow if request.constraint_is_slow else self._quick
            return await loop.run_in_executor(
                threads, self.read_now, key, breakers if dry else None, vocabulary, resumed, salt
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
        grammar = self._grammars.get(salt, key) if key is not None else None
        if key is not None and grammar is None:
            grammar = self._new_grammar(key, vocabulary, resumed)
            self._grammars.put(salt, key, grammar)
        found = self._breakers.get(salt, breakers) if breakers else None
        if breakers and found is None:
            tokenize = partial(vocabulary.tokenize, parse_special=False)
            found = find_breakers(breakers, pieces=vocabulary.pieces, tokenize=tokenize)
            self._breakers.put(salt, breakers, found)
        return EngineConstraints(grammar=grammar, breakers=found)

    def _new_grammar(self, key: ConstraintText, vocabulary: TokenTable, resumed: tuple[int, ...]) -> TokenGrammar:
        tree = self.read_vocabulary(vocabulary)
        made = TokenGrammar(
            lark_text(key, tree),
            tree,
            end_tokens=vocabulary.end_tokens,
            # A control token has no text that a reader sees, so it can be no part of what matches, unless the caller
            # says that its readers see it.
            excluded=vocabulary.control - key.token_ids,
            cpu_s=thread_time,
            param=key.kind,
        )
        if resumed and max(resumed) < vocabulary.size:
            GrammarCursor(made, resumed=resumed).allowed()
        return made

    def read_vocabulary(self, vocabulary: TokenTable) -> TokenTree:
        """Read what all grammars need, in the caller's thread: 0.13 s for 32,000 tokens, 0.6 s for 128,256."""
        with self._lock:
            if self._tree is None:
                started_s = perf_counter()
                self._tree = TokenTree(vocabulary.pieces, partial(vocabulary.tokenize, parse_special=False))
                log.info("grammar.vocabulary_read", tokens=vocabulary.size, took_s=round(perf_counter() - started_s, 3))
            return self._tree


def budget_of(request: runner_pb2.GenerateRequest, vocabulary: TokenTable) -> ReasoningBudget:
    """Return the reasoning limit of an answer.

    Raises:
        InvalidRequest: the texts around its reasoning cannot be used.
    """
    asked = request.reasoning_budget
    tokenize = partial(vocabulary.tokenize, parse_special=True)
    return reasoning_budget(asked.opening, asked.closing, asked.tokens_max, tokenize=tokenize, pieces=vocabulary.pieces)


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
