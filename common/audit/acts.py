"""Administrative acts outside of gateways, and their two lines in an audit log: before the act, and how it ended."""

import os
import pwd
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from common.audit.file import AuditFile, stamped
from common.ids import new_request_id
from common.startup_error import StartupError

_ERROR_LENGTH_MAX = 300
_PRIVATE_DIRECTORY = 0o700


class Act(StrEnum):
    """Acts on the files of keys and of the authority. `ACT_FIELDS` has the fields that each adds to its lines."""

    KEYS_CREATE = "keys.create"
    KEYS_REVOKE = "keys.revoke"
    TOKENS_CREATE = "tokens.create"
    TOKENS_REVOKE = "tokens.revoke"
    TRUST_INIT = "trust.init"
    TRUST_ISSUE = "trust.issue"
    TRUST_RENEW = "trust.renew"
    TRUST_ROTATE = "trust.rotate"
    TRUST_REDIS = "trust.redis"
    TRUST_EXPORT = "trust.export"
    TRUST_JOIN = "trust.join"
    NODE_ADMIT = "node.admit"
    NODE_RENEW = "node.renew"


# Where each act is carried out, and its own fields.
ACT_FIELDS: Mapping[Act, tuple[str, tuple[str, ...]]] = {
    Act.KEYS_CREATE: ("`puna keys create`", ("object", "owner", "tenant", "scopes", "file")),
    Act.KEYS_REVOKE: ("`puna keys revoke`", ("object", "owner", "tenant", "file")),
    Act.TOKENS_CREATE: ("`puna tokens create`, `puna up --address`", ("object", "node", "life_s")),
    Act.TOKENS_REVOKE: ("`puna tokens revoke`", ("object",)),
    Act.TRUST_INIT: ("`puna trust init`, `puna up --address`", ("object",)),
    Act.TRUST_ISSUE: ("`puna trust issue`, `puna up --address`", ("object", "life_s")),
    Act.TRUST_RENEW: ("`puna trust renew`, `puna up --address`", ("object", "life_s")),
    Act.TRUST_ROTATE: ("`puna trust rotate`", ("object",)),
    Act.TRUST_REDIS: ("`puna trust redis`", ("object",)),
    Act.TRUST_EXPORT: ("`puna trust export`", ("object",)),
    Act.TRUST_JOIN: ("`puna trust join`, `puna up --join`, on the machine that joins", ("object", "cluster", "token")),
    Act.NODE_ADMIT: ("discovery, when a machine joins", ("object", "token", "address")),
    Act.NODE_RENEW: ("discovery, when a machine that joined renews", ("object", "address")),
}


class AuditClosedError(StartupError):
    """The line of an act cannot be written, so the act was not carried out."""


@dataclass(frozen=True, slots=True)
class ActLog:
    """Log of the acts of one process. Without a path none is kept."""

    path: Path | None = None

    def check(self) -> None:
        """Check that lines can be written.

        Raises:
            StartupError: they cannot.
        """
        if self.path is not None:
            try:
                AuditFile(self.path).check()
            except OSError as error:
                raise StartupError(f"PUNA_AUDIT_LOG: {self.path}: {error.strerror or error}") from error

    @contextmanager
    def act(self, act: Act, **fields: object) -> Iterator[None]:
        """Write that an act begins, and after the block that it ended; the block is the act.

        Raises:
            AuditClosedError: the first line cannot be written; the block was not run.
        """
        assert fields.keys() <= set(ACT_FIELDS[act][1])
        if self.path is None:
            yield
            return
        file, request_id = AuditFile(self.path), new_request_id()
        asks = {"request_id": request_id, "act": act, "user": _user(), **fields}
        try:
            self.path.parent.mkdir(mode=_PRIVATE_DIRECTORY, parents=True, exist_ok=True)
            file.append(stamped({**asks, "decision": "allowed"}, time.time()))
        except OSError as error:
            text = f"{self.path}: the audit log cannot be written ({error.strerror or error}): nothing was changed"
            raise AuditClosedError(text) from error
        status, fault = "failed", ""
        try:
            yield
            status = "done"
        except Exception as error:
            fault = str(error)[:_ERROR_LENGTH_MAX]
            raise
        finally:
            with suppress(OSError):  # the act cannot be taken back
                file.append(stamped({**asks, "status": status, "error": fault}, time.time()))


NO_ACT_LOG = ActLog()


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # of a container
        return str(os.getuid())
