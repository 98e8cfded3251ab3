"""Checks of a server and a model against what a client needs. Pure: answers of the server in, findings out."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cli.core.connect.client import ConnectClient
from cli.core.doctor.findings import Finding, fail, ok, skip, warn

_INFER = "infer"
_TOOLS = "tools"
_COMPLETION = "completion"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model as the server describes it. Contexts in tokens; 0: not known."""

    name: str
    trained: int
    capabilities: frozenset[str]
    own: int  # `num_ctx` of its Modelfile
    replicas: tuple[int, ...]  # contexts of those that are loaded
    chosen: int  # context that a replica would be loaded with now
    refusal: str  # why none can be loaded; empty: one can
    flaw: str  # what is wrong with its template

    @property
    def context(self) -> int:
        """Return the context that a request without `num_ctx` gets."""
        if self.own:
            return min(self.own, self.trained or self.own)
        return min(self.replicas) if self.replicas else self.chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The largest context up to the wanted one that the cluster can hold, and where; 0 tokens: none."""

    tokens: int
    where: str


def model_facts(
    shown: Mapping[str, Any], placements: Iterable[Mapping[str, Any]], explained: Mapping[str, Any], *, name: str
) -> ServedModel:
    """Return the facts in answers of the server: the shown model, its placements, and an explanation."""
    info, layout = shown.get("model_info") or {}, explained.get("layout") or {}
    replicas = [one for one in placements if one.get("context_length")]
    return ServedModel(
        name=name,
        trained=int(info.get(f"{info.get('general.architecture')}.context_length") or 0),
        capabilities=frozenset(map(str, shown.get("capabilities") or ())),
        own=_own_context(str(shown.get("parameters") or "")),
        replicas=tuple(int(one["context_length"]) for one in replicas),
        chosen=int(layout.get("context_length") or 0),
        refusal="" if layout else str(explained.get("message") or ""),
        flaw=str((shown.get("puna") or {}).get("template_flaw") or ""),
    )


def wanted_context(client: ConnectClient, facts: ServedModel) -> int:
    """Return the context to set for the client: what it works well with, as far as the model was trained for it."""
    return min(client.context, facts.trained) if facts.trained else client.context


def placed_where(explained: Mapping[str, Any]) -> str:
    """Return the node and the devices that an explanation chose; empty: none."""
    for candidate in explained.get("candidates") or []:
        if candidate.get("verdict") == "chosen":
            names = [str(device.get("name") or device.get("id")) for device in candidate.get("devices") or []]
            return f"{candidate.get('node')} ({', '.join(names)})" if names else str(candidate.get("node"))
    return ""


def check_key(whoami: Mapping[str, Any], *, has_key: bool) -> Iterator[Finding]:
    """Yield what the key is good for."""
    if not whoami.get("keys"):
        yield ok("key", "the gateway asks for none")
        return
    scopes = whoami.get("scopes") or []
    if _INFER in scopes:
        yield ok("key", f"{whoami.get('key')} may ask models")
    else:
        text = f"{whoami.get('key')} lacks the scope infer" if has_key else "the gateway asks for one"
        yield fail("key", text, "set PUNA_API_KEY to a key that `puna keys create --scope infer` made")


def check_model(client: ConnectClient, facts: ServedModel) -> Iterator[Finding]:
    """Yield what the model can do of what the client needs."""
    lacks = sorted({_COMPLETION, *([_TOOLS] if client.needs_tools else [])} - facts.capabilities)
    if facts.capabilities and _COMPLETION in lacks:
        advice = "choose a model that answers; `puna models` lists them"
        yield fail("model", f"{facts.name} gives vectors, not answers", advice)
    elif lacks:
        advice = "choose a model whose template has tools, or give it one in a Modelfile; `puna show` says what it can"
        yield fail("model", f"{facts.name} takes no tools, and {client.name} works with tools", advice)
    else:
        yield ok("model", f"{facts.name} can do what {client.name} needs")
    if facts.flaw:
        yield warn("model", f"its template is flawed: {facts.flaw}", "write a better one in a Modelfile (TEMPLATE)")


def needs_more(client: ConnectClient, facts: ServedModel) -> bool:
    """Return True if the context is too small for the client, or smaller than it works well with."""
    return facts.context < wanted_context(client, facts)


def check_context(client: ConnectClient, facts: ServedModel, fit: Fit | None) -> Iterator[Finding]:
    """Yield if the context is enough. `fit` is what the cluster can hold where it is not; None: not determined."""
    if facts.refusal and not facts.replicas:
        yield fail("context", f"{facts.name} cannot be loaded: {facts.refusal}", f"see `puna explain {facts.name}`")
        return
    tokens, wanted = facts.context, wanted_context(client, facts)
    if not client.context:
        yield ok("context", f"requests get {tokens} tokens")
        return
    if tokens >= wanted >= client.context_min:
        yield ok("context", f"requests get {tokens} tokens; {client.name} needs {client.context_min}")
        return
    enough = tokens >= client.context_min
    text = f"requests get {tokens} tokens, {client.name} needs {client.context_min}, better {client.context}"
    if facts.trained and facts.trained < client.context_min:
        text = f"{facts.name} was trained for {facts.trained} tokens, {client.name} needs {client.context_min}"
        yield fail("context", text, "no setting makes that more: choose a model with a longer context")
        return
    yield (warn if enough else fail)("context", text, _context_advice(facts, wanted, fit))


def _context_advice(facts: ServedModel, wanted: int, fit: Fit | None) -> str:
    if facts.own:
        return (
            f"its Modelfile sets num_ctx {facts.own}: make another model of it with `PARAMETER num_ctx {wanted}` "
            "and `puna create`"
        )
    if fit is None:
        return f"`{placements_command(facts.name, wanted)}` sets {wanted}"
    if fit.tokens <= facts.context:
        return f"the cluster cannot hold more: `puna explain {facts.name} --num-ctx {wanted}` shows every figure"
    where = f", on {fit.where}" if fit.where else ""
    holds = "fits" if fit.tokens >= wanted else f"is the most that fits instead of {wanted}"
    lines = f"{fit.tokens} {holds}{where}: `{placements_command(facts.name, fit.tokens)}`"
    if any(tokens < fit.tokens for tokens in facts.replicas):
        lines += f", then `puna load {facts.name} --num-ctx {fit.tokens}`"
    return f"{lines}; or use --fix"


def placements_command(model: str, tokens: int) -> str:
    """Return the command that sets the context that replicas of a model are loaded with."""
    return f"puna placements {model} num_ctx={tokens}"


def trial_contexts(wanted: int, present: int) -> list[int]:
    """Return contexts to try, largest first: the wanted one, then each three quarters or half of a power of two."""
    steps = [wanted]
    power = 1 << 30
    while power > 1024:
        steps += [step for step in (power, power // 4 * 3) if present < step < wanted]
        power //= 2
    return steps


def check_trust(url: str, authorities: str) -> Iterator[Finding]:
    """Yield the source of the certificates that the client trusts; `authorities` is the file that the command read."""
    if url.startswith("https:") and authorities:
        advice = f"give the client the same: NODE_EXTRA_CA_CERTS={authorities} SSL_CERT_FILE={authorities}"
        yield warn("server", f"{url} is trusted because of {authorities}", advice)
    else:
        yield ok("server", f"Puna answers at {url}")


def unseen(model: str) -> Finding:
    """Return the finding for a key that may not look at models."""
    return skip("model", f"{model} is not looked at: the key lacks the scope models:read")


def _own_context(parameters: str) -> int:
    for line in parameters.splitlines():
        name, _, value = line.partition(" ")
        if name == "num_ctx" and value.strip().isdecimal():
            return int(value)
    return 0
