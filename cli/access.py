"""Credentials of a command: its API key, and the certificate authorities that it trusts."""

import os
import ssl
from pathlib import Path

from cli.core.server_address import CA_VARIABLE
from cli.errors import CommandFailed, ExitCode
from cli.settings import CliSettings

_CERTIFICATE_BEGIN = "-----BEGIN CERTIFICATE-----"
_CERTIFICATE_END = "-----END CERTIFICATE-----"


def api_key_of(settings: CliSettings) -> str | None:
    """PUNA_API_KEY, else what is in the file that PUNA_API_KEY_FILE names, else nothing.

    Raises:
        CommandFailed: the file cannot be read, is empty, or is not its owner's alone.
    """
    if settings.api_key:
        return settings.api_key
    if settings.api_key_file is None:
        return None
    from gateway.keys.key_store import read_private  # noqa: PLC0415  # most commands start without it

    try:
        key = read_private(settings.api_key_file.expanduser()).decode().strip()
    except OSError as error:
        raise CommandFailed(f"PUNA_API_KEY_FILE: {error.filename}: {error.strerror}", ExitCode.REFUSED) from error
    except ValueError as error:
        raise CommandFailed(f"PUNA_API_KEY_FILE: {error}", ExitCode.REFUSED) from error
    if not key:
        raise CommandFailed(f"PUNA_API_KEY_FILE: {settings.api_key_file} is empty", ExitCode.REFUSED)
    return key


def trust_of(url: str, *, served_with: Path | None = None) -> ssl.SSLContext | bool:
    """Return the `verify` argument for httpx: this machine's authorities, or those of the file in SSL_CERT_FILE.

    `served_with` is the chain that the gateway of this very environment serves with: then its certificate is trusted,
    and nothing else.

    Raises:
        CommandFailed: the file that counts has no certificates.
    """
    if not url.startswith("https:"):
        return True
    if served_with is not None:
        return _only(served_with.expanduser())
    named = os.environ.get(CA_VARIABLE)
    if not named:
        return ssl.create_default_context()
    # The library reads the variable, too, but says nothing when the file is not there.
    try:
        return ssl.create_default_context(cafile=str(Path(named).expanduser()))
    except (OSError, ssl.SSLError) as error:
        text = error.strerror if isinstance(error, OSError) and error.strerror else "has no certificates"
        raise CommandFailed(f"{named}: {text}", ExitCode.UNREACHABLE) from error


def _only(chain: Path) -> ssl.SSLContext:
    """Return a context that trusts the first certificate of the file, the server's own, under any name and issuer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        own, end, _ = chain.read_text(encoding="ascii").partition(_CERTIFICATE_END)
        context.load_verify_locations(cadata=own[max(own.find(_CERTIFICATE_BEGIN), 0) :] + end)
    except (ssl.SSLError, ValueError) as error:
        raise CommandFailed(f"PUNA_TLS_CERT: {chain}: has no certificate", ExitCode.UNREACHABLE) from error
    except OSError as error:
        raise CommandFailed(f"PUNA_TLS_CERT: {chain}: {error.strerror}", ExitCode.UNREACHABLE) from error
    return context
