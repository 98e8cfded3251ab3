"""Checks of a grammar's rules as a whole. Pure."""

from runner.core.grammar.rules import Alternative


def left_recursive(rules: list[list[Alternative]]) -> bool:
    """Return True if some rule can reach itself before a byte was read."""
    empty = _may_be_empty(rules)
    first = [_begins_with(alternatives, empty) for alternatives in rules]
    # Take away, again and again, what leads nowhere; what is left lies on circles or leads to one.
    waiting = [len(found) for found in first]
    users: list[list[int]] = [[] for _ in rules]
    for number, found in enumerate(first):
        for used in found:
            users[used].append(number)
    done = [number for number, count in enumerate(waiting) if count == 0]
    for number in done:
        for user in users[number]:
            waiting[user] -= 1
            if waiting[user] == 0:
                done.append(user)
    return len(done) < len(rules)


def _begins_with(alternatives: list[Alternative], empty: list[bool]) -> set[int]:
    """Rules that a rule goes into before it reads a byte."""
    found: set[int] = set()
    for alternative in alternatives:
        for element in alternative:
            if not isinstance(element, int):
                break
            found.add(element)
            if not empty[element]:
                break
    return found


def _may_be_empty(rules: list[list[Alternative]]) -> list[bool]:
    empty = [False] * len(rules)
    users: list[set[int]] = [set() for _ in rules]
    for number, alternatives in enumerate(rules):
        for alternative in alternatives:
            for element in alternative:
                if isinstance(element, int):
                    users[element].add(number)
    todo = list(range(len(rules)))
    while todo:
        number = todo.pop()
        if not empty[number] and any(
            all(isinstance(element, int) and empty[element] for element in alternative) for alternative in rules[number]
        ):
            empty[number] = True
            todo += users[number]
    return empty
