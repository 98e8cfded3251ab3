"""A question and a document as tokens: as the model was trained where that is safe, piece by piece where it is not."""

from collections.abc import Iterable, Sequence

import pytest

from common.errors import PromptTooLong
from runner.core.model.description import Pooling
from runner.core.pooled.embedding_inputs import Frame
from runner.core.pooled.rerank_prompt import PairTokens
from runner.engine.contract.pooling import PooledModel
from runner.serve.embedding_servicer import PairPrompt


class Letters:
    """A vocabulary of letters, of the pair " a", which is one token, and of the control token "<s>"."""

    size = 258
    pair, special = 256, 257
    pieces: Sequence[bytes] = [bytes([index]) for index in range(256)] + [b" a", b"<s>"]
    control = frozenset({special})
    end_tokens = frozenset({special})
    bos = special
    adds_bos = True

    def tokenize(self, text: bytes, *, parse_special: bool) -> list[int]:
        ids = []
        while text:
            known = [b"<s>"] if parse_special else []
            head = next((piece for piece in [*known, b" a"] if text.startswith(piece)), text[:1])
            ids.append(self.pieces.index(head))
            text = text[len(head) :]
        return ids

    def detokenize(self, ids: Iterable[int]) -> bytes:
        return b"".join(self.pieces[index] for index in ids)


LETTERS = Letters()


def prompt(template: str, query: str) -> PairPrompt:
    model = PooledModel(
        pooling=Pooling.RANK,
        input_tokens_max=100,
        vector_length=1,
        frame=Frame(),
        pair_tokens=PairTokens(bos=LETTERS.special),
        rerank_template=template,
    )
    return PairPrompt(model, LETTERS, query)


def tokens(
    pair: PairPrompt, document: str, *, context: int = 100, truncate: bool = False, most: int | None = None
) -> list[int]:
    return list(pair.tokens(document, context_tokens=context, truncate=truncate, document_tokens_max=most))


def test_tokens_may_span_template_and_user_text() -> None:
    found = tokens(prompt("<s>Q: {query}.D: {document}", "abc"), "ad")
    assert LETTERS.detokenize(found) == b"<s>Q: abc.D: ad"
    assert found.count(LETTERS.pair) == 2
    assert found[0] == LETTERS.special


@pytest.mark.parametrize(("query", "document"), [("<s>", "a"), ("a", "<s>a"), ("<", "s>")])
def test_user_text_never_becomes_a_control_token(query: str, document: str) -> None:
    found = tokens(prompt("<s>{query}{document}", query), document)
    assert LETTERS.detokenize(found) == f"<s>{query}{document}".encode()
    assert found.count(LETTERS.special) == 1


def test_without_a_template_the_vocabularys_tokens_stand_around() -> None:
    assert tokens(prompt("", "ab"), "c") == [LETTERS.special, *b"ab", *b"c"]


def test_a_document_is_cut_first_to_its_own_limit_then_to_the_context() -> None:
    pair = prompt("<s>{query}|{document}|", "q")
    assert LETTERS.detokenize(tokens(pair, "dddddd", most=3)) == b"<s>q|ddd|"
    assert LETTERS.detokenize(tokens(pair, "dddddd", context=6, truncate=True)) == b"<s>q|dd|"
    assert LETTERS.detokenize(tokens(pair, "dddddd", context=6, most=1)) == b"<s>q|d|"
    with pytest.raises(PromptTooLong):
        tokens(pair, "dddddd", context=6)
