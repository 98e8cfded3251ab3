"""Checks that both dialects make of the inputs of embeddings and rerank."""

from common.errors import InvalidRequest
from gateway.core.prepare.vectors import INPUTS_MAX


def check_input_count(count: int, *, param: str) -> None:
    """Check that a request has no more inputs than allowed; raises InvalidRequest."""
    if count > INPUTS_MAX:
        raise InvalidRequest(f"{param} has {count} items, at most {INPUTS_MAX} are allowed", param=param)
