"""Routes of the OpenAI and Anthropic APIs that this server does not have.

A 404 would read like a wrong base URL: each family answers 501 with one sentence, whatever the method, to callers who
may ask for answers.
"""

from dataclasses import dataclass

from common.errors import NotSupported
from gateway.core.keys.keys import Scope
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.route_errors import NEVER_THERE
from gateway.http.endpoint.router import ANY_METHOD, Route

# Name of each family, by its path under /v1.
_FAMILIES = {
    "assistants": "assistants",
    "audio": "speech and transcription",
    "batches": "batches",
    "containers": "containers",
    "conversations": "stored conversations",
    "evals": "evaluations",
    "files": "files",
    "fine_tuning": "fine-tuning",
    "images": "images that are generated or edited",
    "messages/batches": "batches of messages",
    "moderations": "moderation",
    "realtime": "realtime sessions",
    "threads": "threads",
    "uploads": "uploads",
    "vector_stores": "vector stores",
    "videos": "videos",
}


@dataclass(frozen=True, slots=True)
class _Absent:
    noun: str

    async def refuse(self, exchange: Exchange) -> None:
        """Answer 501.

        Raises:
            NotSupported: always; the client should not try again.
        """
        route = f"{exchange.scope['method']} {exchange.record.route.partition('/{')[0]}"
        raise NotSupported(f"{route} is not supported: this server has no API for {self.noun}")


def absent_routes() -> list[Route]:
    """List the routes that are not supported."""
    return [
        Route(
            ANY_METHOD,
            f"/v1/{family}/{{path}}",
            _Absent(noun).refuse,
            f"Not supported: {noun}",
            scope=Scope.INFER,
            errors=NEVER_THERE,
            statuses=(),
        )
        for family, noun in _FAMILIES.items()
    ]
