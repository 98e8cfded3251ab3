"""Put a question and a document together as a ranking model expects them. Pure.

Source of the order without a template, `[BOS] query [EOS] [SEP] document [EOS]`: llama-server.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from runner.core.pooled.embedding_inputs import cut_head
from runner.core.sequence.truncation import too_long


class Place(Enum):
    """Place for user text."""

    QUERY = "{query}"
    DOCUMENT = "{document}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTokens:
    """Tokens that the vocabulary adds; None where it does not."""

    bos: int | None = None
    eos: int | None = None
    sep: int | None = None


TextPart = str | Place
IdsPart = tuple[int, ...] | Place
_PLACES = re.compile("|".join(f"({re.escape(place.value)})" for place in Place))


def split_template(template: str) -> tuple[TextPart, ...]:
    """Split a template into its own text and the places between it."""
    places = {place.value: place for place in Place}
    return tuple(places.get(part, part) for part in _PLACES.split(template) if part)


def fill_text(parts: Sequence[TextPart], *, query: str, document: str) -> str:
    """Return the prompt as text. What looks like a place inside user text stays as it is."""
    texts = {Place.QUERY: query, Place.DOCUMENT: document}
    return "".join(texts[part] if isinstance(part, Place) else part for part in parts)


def plain_parts(tokens: PairTokens) -> tuple[IdsPart, ...]:
    """Return the pair for a model without a template."""

    def fixed(*ids: int | None) -> tuple[int, ...]:
        return tuple(token_id for token_id in ids if token_id is not None)

    return (
        fixed(tokens.bos),
        Place.QUERY,
        fixed(tokens.eos, tokens.sep),
        Place.DOCUMENT,
        fixed(tokens.eos),
    )


def fill_ids(
    parts: Sequence[IdsPart], *, query: Sequence[int], document: Sequence[int], context_tokens: int, truncate: bool
) -> tuple[int, ...]:
    """Return the prompt as tokens; if it is too long, with as much of the document's beginning as fits.

    Raises:
        InvalidRequest: no room for any of the document.
        PromptTooLong: longer than the context and `truncate` is off.
    """
    places = sum(part is Place.DOCUMENT for part in parts)
    fixed = sum(len(query) if part is Place.QUERY else len(part) for part in parts if part is not Place.DOCUMENT)
    if (tokens := fixed + places * len(document)) > context_tokens:
        if not truncate:
            raise too_long(tokens, context_tokens, param="documents")
        limit = (context_tokens - fixed) // max(1, places)
        # A template without a place for the document has nothing to cut.
        document = cut_head(document, limit=limit if places else 0, param="documents")
    ids: list[int] = []
    for part in parts:
        if part is Place.QUERY:
            ids += query
        elif part is Place.DOCUMENT:
            ids += document
        else:
            ids += part
    return tuple(ids)
