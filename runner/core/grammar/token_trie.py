"""The bytes of a vocabulary's tokens as a tree, so that a grammar looks at each beginning once. Pure, numpy only."""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from runner.core.grammar.walk import DEAD, Grammar, StateId, WorkBudget

_NONE = -1


class TokenTrie:
    """Nodes by depth: the children of a node lie side by side. Left out: tokens without bytes or with a zero."""

    def __init__(self, pieces: list[bytes], *, excluded: Collection[int] = ()) -> None:
        """`excluded` tokens are never allowed."""
        left_out = frozenset(excluded)
        ids = [
            token_id for token_id, piece in enumerate(pieces) if piece and 0 not in piece and token_id not in left_out
        ]
        ids.sort(key=lambda token_id: pieces[token_id])
        self._token_ids = np.array(ids, np.int32)
        lengths = np.array([len(pieces[token_id]) for token_id in ids], np.int32)
        self._bytes: list[NDArray[np.uint8]] = []  # by depth, one for each node
        self._first_child: list[NDArray[np.int32]] = []  # by depth: of each node, in the next depth
        self._children: list[NDArray[np.int32]] = []
        self._token_node = np.full(len(ids), _NONE, np.int32)  # at the depth of the token's length
        self._depth_tokens: list[NDArray[np.intp]] = []  # by depth: places in _token_ids, in order of their nodes
        self._grow([pieces[token_id] for token_id in ids], lengths)

    def _grow(self, pieces: list[bytes], lengths: NDArray[np.int32]) -> None:
        """Build depth by depth: in sorted order, tokens with the same beginning lie side by side."""
        count, depth_max = len(pieces), int(lengths.max(initial=0))
        joined = np.frombuffer(b"".join(pieces), np.uint8)
        offsets = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64) if count else np.zeros(0, np.int64)
        begins = np.zeros(count, bool)  # a node begins at this token
        begins[:1] = True
        rows = np.arange(count)  # tokens that are at least this long
        node_of = np.zeros(count, np.int32)
        nodes = 1  # the root alone
        for depth in range(depth_max):
            rows = rows[lengths[rows] > depth]
            byte = joined[offsets[rows] + depth]
            parent = node_of[rows]
            fresh = np.ones(len(rows), bool)
            fresh[1:] = (byte[1:] != byte[:-1]) | (parent[1:] != parent[:-1])
            numbers = (np.cumsum(fresh) - 1).astype(np.int32)
            node_of[rows] = numbers
            parents = parent[fresh]
            children = np.bincount(parents, minlength=nodes).astype(np.int32)
            self._children.append(children)
            self._first_child.append((np.cumsum(children) - children).astype(np.int32))
            self._bytes.append(byte[fresh])
            ending = rows[lengths[rows] == depth + 1]
            self._token_node[ending] = node_of[ending]
            self._depth_tokens.append(ending)
            nodes = int(fresh.sum())
        self._children.append(np.zeros(nodes, np.int32))
        self._first_child.append(np.zeros(nodes, np.int32))

    def inside(self, vocabulary_size: int) -> NDArray[np.bool_]:
        """Of every token, whether it is in the tree."""
        flags = np.zeros(vocabulary_size, bool)
        flags[self._token_ids] = True
        return flags

    def allowed(self, grammar: Grammar, state: StateId, budget: WorkBudget) -> NDArray[np.int32]:
        """Ids, sorted, of all tokens that may follow in a state.

        Raises:
            GrammarTooComplex: the budget is too small.
        """
        live_nodes = np.zeros(1, np.int32)
        live_states = np.full(1, state, np.int32)
        found: list[NDArray[np.int32]] = []
        for depth, node_bytes in enumerate(self._bytes):
            counts = self._children[depth][live_nodes]
            total = int(counts.sum())
            if total == 0:
                break
            table = grammar.table(live_states, budget)
            begins = self._first_child[depth][live_nodes]
            shift = np.cumsum(counts) - counts
            nodes = np.repeat(begins - shift, counts) + np.arange(total, dtype=np.int32)
            states = table[np.repeat(live_states, counts), node_bytes[nodes]]
            alive = states != DEAD
            live_nodes, live_states = nodes[alive], states[alive]
            if not live_nodes.size:
                break
            tokens = self._depth_tokens[depth]
            if tokens.size:
                reached = np.zeros(len(node_bytes), bool)
                reached[live_nodes] = True
                found.append(self._token_ids[tokens[reached[self._token_node[tokens]]]])
        return np.sort(np.concatenate(found)) if found else np.zeros(0, np.int32)
