"""Walk along a grammar byte by byte: which bytes may come next, and may the text end here. Pure, numpy only.

A state is the set of places in the grammar where a text may be; states are found when they are first reached and kept,
so that every later text that gets there pays a look-up. All work is counted against a budget: a grammar can be written
whose next state takes longer than the universe, and the engine must hear of it instead of computing it.
"""

from dataclasses import dataclass
from typing import NewType

import numpy as np
from numpy.typing import NDArray

from common.errors import InvalidRequest
from runner.core.grammar.rules import ByteSet, GrammarRules

StateId = NewType("StateId", int)
DEAD = StateId(0)
# Places of one state. A grammar for data has tens; more means that it is ambiguous without end.
PLACES_MAX = 1_000
# States kept; each takes about 1.5 KB. A grammar that has more starts again from nothing.
STATES_MAX = 16_384
_BYTES = 256
_END, _BYTE, _RULE = range(3)
_NOWHERE = -1


class GrammarTooComplex(InvalidRequest):
    """Following the grammar takes more work than one answer may cost."""


@dataclass(slots=True)
class WorkBudget:
    """Places that may still be visited. About a million are visited in a second."""

    left: int

    def spend(self, places: int) -> None:
        """Pay for visits.

        Raises:
            GrammarTooComplex: nothing is left.
        """
        self.left -= places
        if self.left < 0:
            raise GrammarTooComplex("the grammar is too ambiguous to follow", param="grammar")


class Grammar:
    """The states of one grammar. Made in any thread, then used by the engine thread only."""

    def __init__(self, rules: GrammarRules) -> None:
        """`rules` are parsed, so that every reference exists and none recurses on the left."""
        self._kinds: list[int] = []
        self._sets: list[ByteSet] = []  # by position; empty where the position is no set of bytes
        self._alternatives: list[tuple[int, ...]] = []  # by position: where the rule's alternatives begin
        self._root = self._lay_out(rules)
        self.resets = 0  # states of earlier counts are no longer valid
        self._clear()

    def _lay_out(self, rules: GrammarRules) -> tuple[int, ...]:
        """Write all alternatives in one row of positions, each closed by an end."""
        starts: list[tuple[int, ...]] = []
        references: list[tuple[int, int]] = []
        for alternatives in rules.rules:
            begins = []
            for alternative in alternatives:
                begins.append(len(self._kinds))
                for element in alternative:
                    if isinstance(element, int):
                        references.append((len(self._kinds), element))
                    self._put(_RULE if isinstance(element, int) else _BYTE, () if isinstance(element, int) else element)
                self._put(_END, ())
            starts.append(tuple(begins))
        for position, rule in references:
            self._alternatives[position] = starts[rule]
        return starts[rules.root]

    def _put(self, kind: int, byte_set: ByteSet) -> None:
        self._kinds.append(kind)
        self._sets.append(byte_set)
        self._alternatives.append(())

    def _clear(self) -> None:
        # A place is where the text is: a position, and the place that follows its rule's end. Both are one number.
        self._place_ids: dict[tuple[int, int], int] = {}
        self._places: list[tuple[int, int]] = []
        self._state_ids: dict[tuple[frozenset[int], bool], StateId] = {}
        self._states: list[frozenset[int]] = []
        self._ends: list[bool] = []
        self._walked: list[bool] = []
        self._next = np.zeros((64, _BYTES), np.int32)
        self._state_of(frozenset(), ends=False)  # DEAD
        self._walked[DEAD] = True

    @property
    def states(self) -> int:
        """Return the number of known states."""
        return len(self._states)

    def forget(self) -> None:
        """Start again from nothing: states known so far mean nothing from now on."""
        self._clear()
        self.resets += 1

    def start(self, budget: WorkBudget) -> StateId:
        """Return the state before the first byte.

        Raises:
            GrammarTooComplex: the budget is too small.
        """
        return self._enter([(position, _NOWHERE) for position in self._root], budget)

    def may_end(self, state: StateId) -> bool:
        """Return True if the text so far matches the whole grammar."""
        return self._ends[state]

    def is_over(self, state: StateId) -> bool:
        """Return True if nothing may follow."""
        return not self._states[state]

    def advance(self, state: StateId, text: bytes, budget: WorkBudget) -> StateId:
        """Return the state after more bytes; DEAD if they may not follow.

        Raises:
            GrammarTooComplex: the budget is too small.
        """
        for byte in text:
            if not self._walked[state]:
                self._walk(state, budget)
            state = StateId(int(self._next[state, byte]))
            if state == DEAD:
                return DEAD
        return state

    def table(self, states: NDArray[np.int32], budget: WorkBudget) -> NDArray[np.int32]:
        """Next states int32[states known, 256] in which the rows of these states are filled.

        Raises:
            GrammarTooComplex: the budget is too small.
        """
        for state in np.unique(states).tolist():
            if not self._walked[state]:
                self._walk(StateId(state), budget)
        return self._next

    def _walk(self, state: StateId, budget: WorkBudget) -> None:
        """Fill the row of a state."""
        places = [self._places[place] for place in self._states[state]]
        cuts = {0, _BYTES}
        for position, _ in places:
            for first, last in self._sets[position]:
                cuts.add(first)
                cuts.add(last + 1)
        edges = sorted(cuts)
        budget.spend(len(edges) + len(places))
        index = {edge: at for at, edge in enumerate(edges)}
        followers: list[list[tuple[int, int]]] = [[] for _ in edges]
        for position, after in places:
            for first, last in self._sets[position]:
                for at in range(index[first], index[last + 1]):
                    followers[at].append((position + 1, after))
        known: dict[tuple[tuple[int, int], ...], StateId] = {}
        row = np.zeros(_BYTES, np.int32)
        for at, found in enumerate(followers[:-1]):
            if found:
                key = tuple(found)
                if key not in known:
                    known[key] = self._enter(found, budget)
                row[edges[at] : edges[at + 1]] = known[key]
        self._next[state] = row
        self._walked[state] = True

    def _enter(self, starts: list[tuple[int, int]], budget: WorkBudget) -> StateId:
        """Return the state of a text at these positions: go into rules and out of ended ones, up to sets of bytes."""
        kinds, alternatives, places = self._kinds, self._alternatives, self._places
        found: set[int] = set()
        ends = False
        seen = set(starts)
        todo = list(starts)
        while todo:
            at = todo.pop()
            position, after = at
            kind = kinds[position]
            if kind == _BYTE:
                found.add(self._place(at))
                continue
            if kind == _END:
                if after == _NOWHERE:
                    ends = True
                    continue
                reached = [places[after]]
            else:
                # What ends with its rule needs no place to come back to.
                behind = after if kinds[position + 1] == _END else self._place((position + 1, after))
                reached = [(start, behind) for start in alternatives[position]]
            fresh = [one for one in reached if one not in seen]
            seen.update(fresh)
            todo += fresh
            if len(seen) > PLACES_MAX + len(starts):
                budget.spend(len(seen))
                raise GrammarTooComplex("the grammar is too ambiguous to follow", param="grammar")
        budget.spend(len(seen))
        if len(found) > PLACES_MAX:
            raise GrammarTooComplex("the grammar is too ambiguous to follow", param="grammar")
        return self._state_of(frozenset(found), ends=ends)

    def _place(self, place: tuple[int, int]) -> int:
        known = self._place_ids.get(place)
        if known is None:
            known = self._place_ids[place] = len(self._places)
            self._places.append(place)
        return known

    def _state_of(self, places: frozenset[int], *, ends: bool) -> StateId:
        key = (places, ends)
        known = self._state_ids.get(key)
        if known is None:
            known = self._state_ids[key] = StateId(len(self._states))
            self._states.append(places)
            self._ends.append(ends)
            self._walked.append(False)
            if known >= len(self._next):
                self._next = np.concatenate([self._next, np.zeros_like(self._next)])
        return known
