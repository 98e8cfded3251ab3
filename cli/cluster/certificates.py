"""Certificates of a machine that is open to others, or joins one: made, fetched or found before anything starts."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cli.cluster.enrolment import join_cluster
from cli.cluster.home import Home
from cli.cluster.joining import identity_directory
from cli.cluster.plan import UpRequest
from cli.errors import CommandFailed, ExitCode
from common.audit.acts import Act, ActLog
from common.ids import random_id
from common.startup_error import StartupError
from common.trust.authority import Authority
from common.trust.certificates import by_fingerprint
from common.trust.identity import Identity
from common.trust.roles import ID_PATTERN, Role, RoleName
from common.trust.tokens import Token, parse_token

_OWN_ROLES = (Role.DISCOVERY, Role.SCHEDULER, Role.GATEWAY, Role.OPERATOR)
_NEW = "`puna tokens create` on its first machine prints a token; add it with --token"


async def prepare_certificates(home: Home, request: UpRequest, say: Callable[[str], None]) -> UpRequest:
    """Return the request with the directory of certificates; without other machines as it is.

    Raises:
        CommandFailed: a certificate is missing and cannot be made or fetched.
        StartupError: files cannot be used.
    """
    if request.node_id and not ID_PATTERN.fullmatch(request.node_id):
        raise CommandFailed("PUNA_NODE_ID may have letters, digits, dots, dashes and underscores, at most 63")
    if request.joined:
        return await _of_joining(home, request, say)
    return _of_first(home, request) if request.opened else request


def _of_first(home: Home, request: UpRequest) -> UpRequest:
    """Make the authority on first use, and what the processes of this machine need."""
    trust = request.trust or _own(home)
    authority = Authority(trust, acts=home.acts)
    if not authority.exists:
        if request.trust is not None:
            return request  # its certificates are brought by other means
        if _nodes(trust):
            raise CommandFailed(f"{trust} has the certificate of a node of another cluster; use another --home")
        authority.create()
    request = replace(request, trust=trust, node_id=_own_node_id(home, trust, request.node_id))
    authority.renew()
    issued = {facts.name for facts in authority.issued()}
    names = [*map(RoleName, _OWN_ROLES), *([RoleName(Role.NODE, request.node_id)] if request.node_id else [])]
    for name in names:
        if name not in issued:
            authority.issue(name)
    return request


async def _of_joining(home: Home, request: UpRequest, say: Callable[[str], None]) -> UpRequest:
    """Find the certificate of this machine, or get one for the token."""
    trust = request.trust or _own(home)
    has_one = request.trust is not None or bool(_nodes(trust))
    if request.token:
        node_id = await node_for_token(
            request.joined,
            request.token,
            trust,
            node_id=request.node_id,
            kept_id=_kept_id(home),
            acts=home.acts,
            say=say,
        )
        return replace(request, trust=trust, node_id=node_id)
    if not has_one and request.plaintext:
        return request
    if not has_one:
        raise CommandFailed(f"this machine has no certificate of the cluster at {request.joined}; {_NEW}")
    if request.trust is None:
        check_certificate(identity_directory(trust, Role.NODE, request.node_id))
    return replace(request, trust=trust)


async def node_for_token(
    discovery: str,
    token: str,
    trust: Path,
    *,
    node_id: str,
    kept_id: str = "",
    acts: ActLog,
    say: Callable[[str], None],
) -> str:
    """Join with a token, and return the id of this machine. One that has joined before stays what it is if it must.

    `node_id`: the one that was configured; `kept_id`: of this machine before it joined; both may be empty.

    Raises:
        CommandFailed: this machine is not let in, and has no certificate of the cluster.
        StartupError: files cannot be used.
    """
    parsed = _parse(token)
    if Authority(trust).exists:
        raise CommandFailed(f"{trust} has an authority of its own; use another directory to join a cluster")
    known = _known_as(trust, node_id, parsed)
    try:
        wanted = node_id or known or kept_id
        with acts.act(Act.TRUST_JOIN, object=wanted, cluster=discovery, token=parsed.id):
            directory = await join_cluster(discovery, parsed, trust, node_id=wanted)
    except CommandFailed:
        if not known:
            raise
        return known  # and was not removed
    say(f"joined the cluster as node {directory.name}")
    return directory.name


def check_certificate(directory: Path) -> None:
    """Check that a machine without a token has a certificate.

    Raises:
        CommandFailed: it has none that can be used.
    """
    try:
        Identity(directory)
    except StartupError as error:
        raise CommandFailed(f"{str(error).removeprefix('PUNA_TRUST: ')}. To join again: {_NEW}") from error


def _known_as(trust: Path, node_id: str, token: Token) -> str:
    """Return the id as which this machine has joined the cluster of a token before, empty if it has not."""
    try:
        material = Identity(identity_directory(trust, Role.NODE, node_id)).material()
    except (StartupError, CommandFailed):
        return ""
    return material.facts.name.id if token.fingerprint in by_fingerprint(material.authorities) else ""


def _parse(text: str) -> Token:
    try:
        return parse_token(text)
    except ValueError as error:
        raise CommandFailed(str(error), ExitCode.USAGE) from error


def _own(home: Home) -> Path:
    return home.real / "trust"


def _nodes(trust: Path) -> list[str]:
    return [path.name for path in (trust / Role.NODE).glob("*") if path.is_dir()]


def _own_node_id(home: Home, trust: Path, wanted: str) -> str:
    """Return the id of the first machine; empty where its directory has to be asked for by name."""
    known = _nodes(trust)
    if wanted or len(known) == 1:
        return wanted or known[0]
    kept = _kept_id(home)
    if known:
        return kept if kept in known else ""
    return kept or random_id("node-", 10)


def _kept_id(home: Home) -> str:
    """Return the id that the host of this home drew for itself, empty if it never did."""
    path = home.real / "node-id"
    kept = path.read_text().strip() if path.exists() else ""
    return kept if ID_PATTERN.fullmatch(kept) else ""
