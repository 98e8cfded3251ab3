"""What runners tell tenants apart by, where they hold prompts for the next request. Pure.

How soon an answer comes tells whether its prompt was held. So a runner reuses what it holds for requests of one salt
only, and the salt of another tenant is nothing that anybody can make: it takes the pepper of the keys, which all
gateways have and no runner.
"""

import hashlib
import hmac

# Bytes of a salt. Nobody finds two tenants with the same one.
_SIZE_BYTES = 16


def cache_salt(pepper: bytes, tenant: str) -> str:
    """The salt of a tenant, in hexadecimal digits."""
    # Another message space than those of secrets and records: neither begins so.
    return hmac.new(pepper, f"cache\0{tenant}".encode(), hashlib.sha256).digest()[:_SIZE_BYTES].hex()
