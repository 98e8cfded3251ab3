"""Answers of 500 and above that are no bug: functions that this server does not have, on the routes for them."""

# The text, and the routes that may say it. Everything else that the fuzzed gateway could need is there and well:
# nothing may be said to be lost, full, late or away.
NOT_IMPLEMENTED = {
    "this server does not push models and has no accounts": (
        "/api/push", "/api/me", "/api/signout", "/api/experimental/{path}",
    ),
    "quantizing is not supported; create from a GGUF that is quantized already": ("/api/create",),
    "this gateway makes no keys: that needs PUNA_API_KEYS_FILE and PUNA_REDIS_URL": (
        "/puna/v1/keys", "/puna/v1/keys/{id}",
    ),
    "this model does not support embeddings": ("/api/embed", "/api/embeddings"),
}  # fmt: skip
TRY_NO_MORE = "x-should-retry: false"


def is_documented(status: int, head: str, text: str, path: str | None = None) -> bool:
    """Return True if a server error is one of these. `head`: the headers, a line each; `path`: None if unknown."""
    return (
        status == 501
        and TRY_NO_MORE in head.lower()
        and any(said in text and (path is None or path in routes) for said, routes in NOT_IMPLEMENTED.items())
    )
