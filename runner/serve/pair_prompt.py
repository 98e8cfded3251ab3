"""A question and a document as the tokens that a ranking model reads; user text is always literal text."""

from collections.abc import Sequence

from runner.core.pooled.rerank_prompt import IdsPart, Place, fill_ids, fill_text, plain_parts, split_template
from runner.engine.contract.engine import TokenTable
from runner.engine.contract.pooling import PooledModel


class PairPrompt:
    """The prompt of a ranking model for one question and any document."""

    def __init__(self, model: PooledModel, vocabulary: TokenTable, query: str) -> None:
        """Tokenizes the question and the template once."""
        self._vocabulary = vocabulary
        self._query = query
        self._query_ids = self._literal(query)
        self._texts = split_template(model.rerank_template)
        self._parts: tuple[IdsPart, ...] = tuple(
            part if isinstance(part, Place) else tuple(vocabulary.tokenize(part.encode(), parse_special=True))
            for part in self._texts
        ) or plain_parts(model.pair_tokens)

    def tokens(
        self, document: str, *, context_tokens: int, truncate: bool, document_tokens_max: int | None
    ) -> tuple[int, ...]:
        """Return the pair's tokens, the document cut to `document_tokens_max` and then, if `truncate`, to the context.

        Raises:
            InvalidRequest: no room for any of the document.
            PromptTooLong: longer than the context and `truncate` is off.
        """
        ids = self._literal(document)
        shortened = document_tokens_max is not None and len(ids) > document_tokens_max
        pieces = fill_ids(
            self._parts,
            query=self._query_ids,
            document=ids[:document_tokens_max] if shortened else ids,
            context_tokens=context_tokens,
            truncate=truncate,
        )
        whole = None if shortened else self._as_one_text(document, pieces)
        return whole if whole is not None and len(whole) <= context_tokens else pieces

    def _as_one_text(self, document: str, pieces: Sequence[int]) -> tuple[int, ...] | None:
        """Return the prompt tokenized at once, as the model was trained: tokens may span template and user text.

        None where user text would have become a special token, and without a template.
        """
        if not self._texts:
            return None
        text = fill_text(self._texts, query=self._query, document=document)
        whole = self._vocabulary.tokenize(text.encode(), parse_special=True)
        return tuple(whole) if self._control(whole) == self._control(pieces) else None

    def _control(self, ids: Sequence[int]) -> list[int]:
        return [token_id for token_id in ids if token_id in self._vocabulary.control]

    def _literal(self, text: str) -> list[int]:
        return self._vocabulary.tokenize(text.encode(), parse_special=False)
