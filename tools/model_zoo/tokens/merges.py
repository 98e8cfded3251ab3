"""Learn byte-pair merges from a few words. Pure and deterministic: the same words give the same merges everywhere."""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise

Pair = tuple[str, str]


def learn_merges(word_counts: Mapping[str, int], merges: int) -> list[Pair]:
    """Return the most frequent pairs of adjacent symbols, merged one after the other.

    A word starts as its single characters. Ties go to the pair that sorts first, so that neither the order of the
    words nor the hash seed of the process shows. Fewer merges come back when every word has become one symbol.
    """
    words = [list(word) for word in sorted(word_counts)]
    weights = [word_counts[word] for word in sorted(word_counts)]
    counts: Counter[Pair] = Counter()
    holders: defaultdict[Pair, set[int]] = defaultdict(set)
    for index, symbols in enumerate(words):
        for pair in _pairs(symbols):
            counts[pair] += weights[index]
            holders[pair].add(index)
    heap = [(-count, pair) for pair, count in counts.items()]
    heapq.heapify(heap)
    learned: list[Pair] = []
    while heap and len(learned) < merges:
        negative_count, pair = heapq.heappop(heap)
        if counts[pair] != -negative_count or negative_count == 0:
            continue  # an older count of this pair; the current one is in the heap as well
        learned.append(pair)
        changed: set[Pair] = set()
        for index in holders.pop(pair):
            before = words[index]
            after = _merge(before, pair)
            for old in _pairs(before):
                counts[old] -= weights[index]
                changed.add(old)
            for new in _pairs(after):
                counts[new] += weights[index]
                holders[new].add(index)
                changed.add(new)
            words[index] = after
        for touched in changed - {pair}:
            heapq.heappush(heap, (-counts[touched], touched))
    return learned


def _pairs(symbols: list[str]) -> Iterable[Pair]:
    return pairwise(symbols)


def _merge(symbols: list[str], pair: Pair) -> list[str]:
    merged: list[str] = []
    position = 0
    while position < len(symbols):
        if tuple(symbols[position : position + 2]) == pair:
            merged.append(symbols[position] + symbols[position + 1])
            position += 2
        else:
            merged.append(symbols[position])
            position += 1
    return merged
