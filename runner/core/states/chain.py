"""Names of prompt beginnings: a chain of hashes over blocks of inputs. Pure.

A hash covers everything that a state depends on: the model and how it is computed (the space), the tenant's salt, and
all inputs up to the end of its block. Equal hashes therefore mean states that can replace each other.
"""

import hashlib
import json
from array import array
from collections.abc import Mapping, Sequence

BLOCK_INPUTS = 64
# Beyond so many blocks a state is found by its first ones: a name stays short enough for one message.
BLOCKS_MAX = 2048
HASH_BYTES = 16
_ITEM_CODE = "i"
_TOKEN_MAX = 2**31 - 1

Facts = Mapping[str, str | int | float | bool]


def name_space(facts: Facts) -> bytes:
    """Return the hash of everything beside the inputs that decides what a state contains."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=HASH_BYTES).digest()


def chain(space: bytes, salt: str, inputs: Sequence[int]) -> tuple[bytes, ...]:
    """Return one hash for each whole block of inputs, each over all blocks before it, too."""
    last = hashlib.blake2b(salt.encode(), key=space, digest_size=HASH_BYTES).digest()
    found = []
    for start in range(0, min(len(inputs) // BLOCK_INPUTS, BLOCKS_MAX) * BLOCK_INPUTS, BLOCK_INPUTS):
        block = encode_inputs(inputs[start : start + BLOCK_INPUTS])
        last = hashlib.blake2b(block, key=last, digest_size=HASH_BYTES).digest()
        found.append(last)
    return tuple(found)


def state_key(links: Sequence[bytes], inputs: Sequence[int]) -> str:
    """Return the name of a state: its last block, and how many inputs of which it is."""
    tail = encode_inputs(inputs[len(links) * BLOCK_INPUTS :])
    return hashlib.blake2b(tail + len(inputs).to_bytes(8, "big"), key=links[-1], digest_size=HASH_BYTES).hexdigest()


def encode_inputs(inputs: Sequence[int]) -> bytes:
    """Return bytes that differ for different inputs; rows of images are larger than a token's 32 bits."""
    if not inputs or (min(inputs) >= 0 and max(inputs) <= _TOKEN_MAX):
        return array(_ITEM_CODE, inputs).tobytes()
    return b"\xff" + ",".join(map(str, inputs)).encode()
