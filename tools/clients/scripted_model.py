"""A llama that says what the conversation dictates: its weights are computed, not trained.

An unchanged client must get tool calls, code and JSON on demand from a real engine. The chat template
(`chat_template.jinja`) finds the script in a user's message, chooses the next step, and spells that step in the
generation prompt: one *cell* token per character, padded to a multiple of `BUCKET_CELLS`, then one *start* token that
stands for the number of cells. Cells are no part of the history, so that a prompt shares all else with the next one.

Two layers of one head copy the cells:
- The first finds the start token by its key and adds its number to every token that follows.
- The second attends to the constant part of every token, but its query is turned back by that number of positions:
  the rotary embedding peaks at exactly that distance. The token there names the character to say.
"""

import argparse
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from tools.model_zoo.tokens.byte_level import (
    CONTROL_TOKENS,
    END_OF_TEXT,
    END_OF_TURN,
    VISIBLE_TOKENS,
    WORDS,
    byte_alphabet,
)
from tools.model_zoo.tokens.merges import Pair, learn_merges
from tools.model_zoo.tokens.tokenizer import TokenType, corpus

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = Path(__file__).with_name("chat_template.jinja")
NAME = "agent"
# Prompts of coding agents are English and JSON; with these merges a token is about three characters of them.
MERGES = 4096
# The rotary peak stands out at any distance up to this one.
CONTEXT_TOKENS = 131_072
ROPE_BASE = 10_000.0
HEAD = 64
PAIRS = HEAD // 2
BUCKET_CELLS = 32
BUCKETS = 32
# Pairs that turn by less than a third over the longest answer: they find the start token at every distance.
SLOW_PAIRS = 4
# Printable ASCII, and what JSON and markup need besides; each is one cell.
CHARACTERS = (*map(chr, range(0x20, 0x7F)), "\n", "\t")
SPOKEN_SPECIALS = (*VISIBLE_TOKENS, END_OF_TURN)
CELL_NAMES = {"\n": "newline", "\t": "tab", END_OF_TURN: "end"}

# One dimension for a constant, one for each number of cells, and one for all tokens that say nothing. A sayable text
# has two dimensions of `_CODE_WIDTH`: another text has at most one of them.
_CONSTANT = 0
_BUCKET = 1
_CODE = _BUCKET + BUCKETS
_CODE_WIDTH = 16
_CODES = tuple(combinations(range(_CODE, _CODE + _CODE_WIDTH), 2))
_OTHER = _CODE + _CODE_WIDTH
WIDTH = 64
assert _OTHER < WIDTH
assert len(CHARACTERS) + len(SPOKEN_SPECIALS) <= len(_CODES)
# Lead of the right position's score over any other, in units of the logarithm of attention weights.
_LEAD = 40.0
# How much louder the copied token is than the last one; a token that shares a dimension gets half of its logit.
_COPIED = 20.0
_LOUDNESS = 6.0

Matrix = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Tokens in the order of their ids; `codes` gives the sayable ones the number of what they say."""

    texts: tuple[str, ...]
    types: tuple[TokenType, ...]
    merges: tuple[Pair, ...]
    codes: dict[int, int]
    starts: tuple[int, ...]


def cell(text: str) -> str:
    """Return the text of the cell token that makes the model say `text`."""
    return f"<|{CELL_NAMES.get(text, text)}|>"


def start(cells: int) -> str:
    """Return the text of the token that follows this many cells."""
    return f"<|start {cells}|>"


@cache
def vocabulary() -> Vocabulary:
    """Learn the merges from the documentation and lay out all tokens."""
    alphabet = byte_alphabet()
    sayable = (*CHARACTERS, *SPOKEN_SPECIALS)
    cells = [cell(text) for text in sayable]
    starts = [start((bucket + 1) * BUCKET_CELLS) for bucket in range(BUCKETS)]
    merges = _merges()
    normal = [*alphabet, *(left + right for left, right in merges)]
    control = [*CONTROL_TOKENS, *cells, *starts]
    texts = [*normal, *control, *VISIBLE_TOKENS]
    types = [TokenType.NORMAL] * len(normal) + [TokenType.CONTROL] * len(control)
    types += [TokenType.USER_DEFINED] * len(VISIBLE_TOKENS)
    ids = {text: number for number, text in enumerate(texts)}
    codes: dict[int, int] = {}
    for code, text in enumerate(sayable):
        said = alphabet[ord(text)] if text in CHARACTERS else text
        codes[ids[said]] = codes[ids[cell(text)]] = code
    return Vocabulary(
        texts=tuple(texts),
        types=tuple(types),
        merges=tuple(merges),
        codes=codes,
        starts=tuple(ids[text] for text in starts),
    )


def _merges() -> list[Pair]:
    alphabet = byte_alphabet()
    pages = [corpus(), *(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))]
    counts: dict[str, int] = {}
    for page in pages:
        for word in WORDS.findall(page):
            spelled = "".join(alphabet[byte] for byte in word.encode())
            counts[spelled] = counts.get(spelled, 0) + 1
    made = set(alphabet)
    merges: list[Pair] = []
    for left, right in learn_merges(counts, MERGES):
        if left + right not in made:  # two ways to the same token: a vocabulary holds each text once
            made.add(left + right)
            merges.append((left, right))
    return merges


def tensors() -> dict[str, Matrix]:
    """Compute every weight; matrices are float32[outputs, inputs], as llama.cpp multiplies them."""
    words = vocabulary()
    embedding = np.zeros((len(words.texts), WIDTH), np.float32)
    output = np.zeros_like(embedding)
    embedding[:, _CONSTANT] = 1
    embedding[:, _OTHER] = 1
    for token, code in words.codes.items():
        embedding[token, _OTHER] = 0
        embedding[token, list(_CODES[code])] = np.sqrt(0.5)
        if not (words.texts[token].startswith("<|") and words.texts[token] != END_OF_TURN):
            output[token, list(_CODES[code])] = _LOUDNESS
    for bucket, token in enumerate(words.starts):
        embedding[token, _OTHER] = 0
        embedding[token, _BUCKET + bucket] = 1
    norm = np.ones(WIDTH, np.float32)
    found = {"token_embd.weight": embedding, "output_norm.weight": norm, "output.weight": output}
    for layer, attention in enumerate((_find_start(), _copy_cell())):
        found |= {f"blk.{layer}.{name}.weight": matrix for name, matrix in attention.items()}
        found |= {f"blk.{layer}.{name}.weight": norm for name in ("attn_norm", "ffn_norm")}
        found |= {
            f"blk.{layer}.{name}.weight": np.zeros(shape, np.float32)
            for name, shape in (("ffn_gate", (32, WIDTH)), ("ffn_up", (32, WIDTH)), ("ffn_down", (WIDTH, 32)))
        }
    return found


def _normalized(*parts: float) -> float:
    """Return what the norm makes of a one beside other parts of the given sizes."""
    return float(np.sqrt(WIDTH / (1 + sum(part * part for part in parts))))


def _find_start() -> dict[str, Matrix]:
    one = _normalized(1)
    query, key, value = (np.zeros((HEAD, WIDTH), np.float32) for _ in range(3))
    out = np.zeros((WIDTH, HEAD), np.float32)
    slow = 2 * np.arange(PAIRS - SLOW_PAIRS, PAIRS)
    query[slow, _CONSTANT] = _LEAD * np.sqrt(HEAD) / SLOW_PAIRS / one
    for bucket in range(BUCKETS):
        key[slow, _BUCKET + bucket] = 1 / one
        value[bucket, _BUCKET + bucket] = 1 / one
        out[_BUCKET + bucket, bucket] = 1
    return {"attn_q": query, "attn_k": key, "attn_v": value, "attn_output": out}


def _copy_cell() -> dict[str, Matrix]:
    query, key, value = (np.zeros((HEAD, WIDTH), np.float32) for _ in range(3))
    out = np.zeros((WIDTH, HEAD), np.float32)
    turns = ROPE_BASE ** (-2 * np.arange(PAIRS) / HEAD)
    # A token that follows the start token has three parts: the constant, its own code, and the number of cells.
    size = _LEAD / position_lead() * np.sqrt(HEAD) / _normalized(1, 1)
    for bucket in range(BUCKETS):
        angles = turns * (bucket + 1) * BUCKET_CELLS
        query[0::2, _BUCKET + bucket] = size * np.cos(angles)
        query[1::2, _BUCKET + bucket] = -size * np.sin(angles)
    key[0::2, _CONSTANT] = 1 / _normalized(1)
    for row in range(_CODE_WIDTH):
        value[row, _CODE + row] = 1 / _normalized(1)
        out[_CODE + row, row] = _COPIED
    return {"attn_q": query, "attn_k": key, "attn_v": value, "attn_output": out}


@cache
def position_lead() -> float:
    """Return by how much the rotary sum at the right distance exceeds that at every other one of the context."""
    turns = ROPE_BASE ** (-2 * np.arange(PAIRS) / HEAD)
    sums = np.zeros(CONTEXT_TOKENS)
    for turn in turns:
        sums += np.cos(turn * np.arange(1, CONTEXT_TOKENS + 1))
    return float(PAIRS - sums.max())


def write(path: Path) -> None:
    """Write the model file."""
    words = vocabulary()
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(NAME)
    writer.add_description("Says what the conversation dictates; for tests of clients")
    writer.add_license("Apache-2.0")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(len(words.texts))
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(2)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(list(words.texts))
    writer.add_token_types([int(kind) for kind in words.types])
    writer.add_token_merges([" ".join(merge) for merge in words.merges])
    end_of_text = words.texts.index(END_OF_TEXT)
    writer.add_bos_token_id(end_of_text)
    writer.add_eos_token_id(words.texts.index(END_OF_TURN))
    writer.add_pad_token_id(end_of_text)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE.read_text(encoding="utf-8"))
    for name, weights in tensors().items():
        writer.add_tensor(name, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Parse the command line and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    write(arguments.output)
    print(f"{arguments.output}: {arguments.output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
