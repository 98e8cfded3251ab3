"""What both dialects check of the inputs of embeddings and rerank."""

from common.errors import InvalidRequest
from gateway.core.prepare.vectors import INPUTS_MAX


def check_input_count(count: int, *, param: str) -> None:
    """Raises InvalidRequest for more inputs than one request may have."""
    if count > INPUTS_MAX:
        raise InvalidRequest(f"{param} has {count} items, at most {INPUTS_MAX} are allowed", param=param)
