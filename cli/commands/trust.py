"""Output of `puna trust`."""

import base64
import re
import sys
from pathlib import Path

from cli.cluster.certificates import check_certificate, node_for_token
from cli.cluster.enrolment import keep_certificate
from cli.cluster.joining import identity_directory
from cli.errors import CommandFailed, ExitCode
from common.audit.acts import Act, ActLog
from common.startup_error import StartupError
from common.trust.authority import Authority, write_private
from common.trust.certificates import BadCertificate, by_fingerprint, issuer_of, read_facts, when
from common.trust.identity import AUTHORITIES, CERTIFICATE, KEY, Identity, read_trusted, use_identity
from common.trust.roles import Role, RoleName

_FILES = (AUTHORITIES, CERTIFICATE, KEY)


async def join(discovery: str, token: str, trust: Path, *, node_id: str, acts: ActLog, watch: bool) -> None:
    """Get the certificate of a node, unless there is one and no token; with `watch` renew it for ever.

    Raises:
        CommandFailed: this machine is not let in.
        StartupError: files cannot be used.
    """
    if token:
        node_id = await node_for_token(discovery, token, trust, node_id=node_id, acts=acts, say=_say)
    own = identity_directory(trust, Role.NODE, node_id)
    check_certificate(own)
    use_identity(Identity(own))
    _say(str(own))
    if watch:
        await keep_certificate(discovery, own, lambda text: print(f"puna: {text}", file=sys.stderr, flush=True))


def _say(text: str) -> None:
    print(text, flush=True)


def identities(directory: Path) -> list[dict[str, str]]:
    """Describe the identities in a directory: its own, or those of the roles below it.

    Raises:
        CommandFailed: there is none.
        StartupError: one cannot be read.
    """
    found = [_described(path.parent) for path in sorted(directory.expanduser().glob(f"**/{CERTIFICATE}"))]
    if not found:
        text = f"{directory} has no certificate; `puna up --address` makes them, `puna up --join` gets one"
        raise CommandFailed(text, ExitCode.NOT_FOUND)
    return found


def _described(directory: Path) -> dict[str, str]:
    try:
        certificate, authorities = read_trusted(directory / CERTIFICATE), read_trusted(directory / AUTHORITIES)
        facts, issuer = read_facts(certificate), issuer_of(certificate, authorities)
    except OSError as error:
        raise StartupError(f"{error.filename}: {error.strerror}") from error
    except BadCertificate as error:
        raise StartupError(f"{directory}: {error}") from error
    return {
        "role": str(facts.name),
        "expires": when(facts.valid_to_unix_s),
        "renewed": when(facts.renew_at_unix_s),
        "authority": next(iter(by_fingerprint(issuer))) if issuer is not None else "none of its ca.crt",
        "directory": str(directory),
    }


def export_secrets(authority: Authority, roles: list[str], output: Path | None) -> None:
    """Print Secrets, or write a file for each.

    Raises:
        CommandFailed: a role has no certificate here.
        StartupError: files cannot be read or written.
    """
    issued = {str(facts.name): facts.name for facts in authority.issued()}
    unknown = sorted(set(roles) - issued.keys())
    if unknown or not issued:
        wanted = " ".join(unknown) or "ROLE"
        text = f"{authority.directory} has no certificate of {wanted}; `puna trust issue {wanted}` makes it"
        raise CommandFailed(text, ExitCode.NOT_FOUND)
    secrets = {
        secret_name(name): _secret(authority, name) for role, name in issued.items() if role in (roles or issued)
    }
    with authority.acts.act(Act.TRUST_EXPORT, object=" ".join(sorted(set(roles) or issued))):
        if output is None:
            print("---\n".join(secrets.values()), end="")
            return
        write_private(output.expanduser(), {f"{name}.yaml": text.encode() for name, text in secrets.items()})


def secret_name(name: RoleName) -> str:
    """Return the name of the Secret of a role, in characters that Kubernetes allows."""
    return "puna-trust-" + re.sub(r"[^a-z0-9.]+", "-", str(name).lower()).strip("-.")


def _secret(authority: Authority, name: RoleName) -> str:
    directory = authority.directory / str(name)
    lines = ["apiVersion: v1", "kind: Secret", f"metadata: {{name: {secret_name(name)}}}", "type: kubernetes.io/tls"]
    try:
        content = {file: read_trusted(directory / file, secret=file == KEY) for file in _FILES}
    except (OSError, BadCertificate) as error:
        raise StartupError(f"{directory}: {error}") from error
    data = [f"  {file}: {base64.b64encode(one).decode()}" for file, one in content.items()]
    return "\n".join([*lines, "data:", *data, ""])
