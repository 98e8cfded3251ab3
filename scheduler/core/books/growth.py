"""How large a context a reload takes, and how often there may be one: clients that differ must not make a model thrash.

A replica with more context than asked serves, so the largest that was asked for lately is what a new one gets.
"""

from scheduler.core.books.books import Books
from scheduler.core.books.replicas import serving_replicas
from scheduler.core.values.view import ModelFile

# Of each model, so many different sizes are remembered; more clients than that do not differ in it.
SIZES_MAX = 16


def remember_asked(books: Books, digest: str, wanted_tokens: int | None, now_s: float) -> None:
    """Somebody asked for a context of this size."""
    if wanted_tokens is None:
        return
    fresh = [
        (at_s, tokens)
        for at_s, tokens in books.largest_asked.get(digest, ())
        if now_s < at_s + books.policy.asked_tokens_s and tokens > wanted_tokens
    ]
    # What is smaller and older can never be the largest again.
    books.largest_asked[digest] = (*fresh[-SIZES_MAX + 1 :], (now_s, wanted_tokens))


def grown_context_tokens(books: Books, model: ModelFile, chosen: int, now_s: float) -> int:
    """The context of a load beside replicas that serve: the largest that was asked for lately, and never less."""
    asked = [
        tokens
        for at_s, tokens in books.largest_asked.get(model.digest, ())
        if now_s < at_s + books.policy.asked_tokens_s
    ]
    return max([chosen, *asked])


def may_replace(books: Books, digest: str, now_s: float) -> bool:
    """Whether a replica of the model may go for a larger one again. One that fits beside it need not wait."""
    replaced_s = books.replaced_at_s.get(digest)
    return replaced_s is None or now_s >= replaced_s + books.policy.reload_cooldown_s


def superseded_by(books: Books, digest: str, placement_id: str, context_tokens: int, kept: int) -> list[str]:
    """Replicas that a larger one makes unnecessary, smallest first; at least `kept` stay."""
    others = [runner for _, runner in serving_replicas(books, digest) if runner.placement_id != placement_id]
    smaller = sorted(
        (runner for runner in others if runner.layout.context_tokens < context_tokens),
        key=lambda runner: (runner.layout.context_tokens, runner.placement_id),
    )
    spare = 1 + len(others) - max(1, kept)
    return [runner.placement_id for runner in smaller[: max(0, spare)]]
