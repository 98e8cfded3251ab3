"""A SentencePiece-like tokenizer, as Llama 2 and Gemma use it: pieces with scores, and byte tokens for the rest."""

from collections import Counter
from functools import cache

from tools.model_zoo.tokens.merges import learn_merges
from tools.model_zoo.tokens.tokenizer import Tokenizer, TokenType, Value, VocabularyTooSmall, corpus, invented_pairs

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # how SentencePiece writes a space inside a piece
LLAMA_TOKENS = ("<unk>", "<s>", "</s>")
GEMMA_TOKENS = ("<unk>", "<bos>", "<eos>", "<pad>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>",
                "<end_of_image>")  # fmt: skip


@cache
def llama_tokenizer(tokens: int) -> Tokenizer:
    """Return a tokenizer that starts each text with `<s>` and a space, as Llama 2's does.

    Raises:
        VocabularyTooSmall: ask for more tokens.
    """
    return _tokenizer(tokens, LLAMA_TOKENS, adds_space=True)


@cache
def gemma_tokenizer(tokens: int) -> Tokenizer:
    """Return a tokenizer with Gemma's turn and image tokens; it adds `<bos>` but no space.

    Raises:
        VocabularyTooSmall: ask for more tokens.
    """
    return _tokenizer(tokens, GEMMA_TOKENS, adds_space=False)


def _tokenizer(tokens: int, special: tuple[str, ...], *, adds_space: bool) -> Tokenizer:
    characters = sorted({SPACE, *corpus()} - {" ", "\n"})
    merges_wanted = tokens - len(special) - 256 - len(characters)
    if merges_wanted < 0:
        raise VocabularyTooSmall(f"{tokens} tokens")
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = _pieces(merges_wanted, set(characters))
    texts = [*special, *byte_tokens, *pieces, *characters]
    types = [TokenType.UNKNOWN] + [TokenType.CONTROL] * (len(special) - 1) + [TokenType.BYTE] * 256
    types += [TokenType.NORMAL] * (len(pieces) + len(characters))
    scores = [0.0] * (len(special) + 256) + [-float(rank) for rank in range(len(pieces) + len(characters))]
    metadata: list[tuple[str, Value]] = [
        ("tokenizer.ggml.model", "llama"),
        ("tokenizer.ggml.pre", "default"),
        ("tokenizer.ggml.tokens", texts),
        ("tokenizer.ggml.scores", scores),
        ("tokenizer.ggml.token_type", [int(kind) for kind in types]),
        ("tokenizer.ggml.unknown_token_id", 0),
        ("tokenizer.ggml.bos_token_id", 1),
        ("tokenizer.ggml.eos_token_id", 2),
        ("tokenizer.ggml.add_bos_token", True),
        ("tokenizer.ggml.add_eos_token", False),
        ("tokenizer.ggml.add_space_prefix", adds_space),
    ]
    if "<end_of_turn>" in special:
        metadata.append(("tokenizer.ggml.eot_token_id", special.index("<end_of_turn>")))
    return Tokenizer(tokens=tokens, control_ids=tuple(range(len(special))), metadata=tuple(metadata))


def _pieces(count: int, characters: set[str]) -> list[str]:
    """Return pieces by falling score: an earlier merge is the better one."""
    words = Counter(SPACE + word for word in corpus().split())
    learned = list(dict.fromkeys(left + right for left, right in learn_merges(words, count)))
    taken = characters | set(learned)
    missing = count - len(learned)
    invented = invented_pairs(learned, word_start=SPACE, taken=taken, count=missing)
    return learned + [left + right for left, right in invented]
