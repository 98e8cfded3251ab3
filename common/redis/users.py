"""Users of Redis: one for each role that needs it, with its commands and keys. Hosts have none.

DIRECTORY/redis/users.acl             rules, and digests of the passwords; Redis reads it as `--aclfile`
DIRECTORY/redis/redis-password        that of replicas and sentinels, where there are several servers
DIRECTORY/gateway/redis-password, …   the password of one role, beside its certificate
"""

import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path

from common.paths import replace_file
from common.startup_error import StartupError
from common.trust.authority import write_private
from common.trust.identity import read_trusted
from common.trust.roles import Role

PASSWORD, USERS = "redis-password", "redis/users.acl"  # a file's name
# Commands, and patterns of keys, also of those inside scripts, which run with the rights of their caller.
RULES: Mapping[Role, tuple[str, str]] = {
    Role.GATEWAY: (
        """del evalsha get hdel hget hgetall hincrby hset hsetnx info|server pexpire script|load set time zadd zcard
        zrem zremrangebyscore zscore""",
        "~{puna-keys}:* ~{puna-quota:* ~{puna-shares}:reports",
    ),
    Role.SCHEDULER: ("del evalsha get hdel hget hgetall hset info|server pexpire script|load set time", "~{sched}:*"),
}
_CONNECTION = "client|setinfo hello ping select"
# What servers and sentinels of a set ask of each other.
SERVERS = "redis"
_SET = """client|kill client|setname config|rewrite exec info multi ping psync publish replconf role script|kill slaveof
    subscribe"""
# Health checks have no password.
_EVERYONE = "user default on nopass resetkeys resetchannels -@all +ping"
# Digests of random passwords are no secret: Redis may run as another user.
_USERS_MODE, _DIRECTORY_MODE = 0o644, 0o755
_PASSWORD_BYTES = 32


def write_users(directory: Path) -> Path:
    """Write the rules, and a password for each user that has none yet; return the file for Redis.

    Raises:
        StartupError: a file cannot be read or written.
    """
    users = directory / USERS
    try:
        users.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        rules = [(str(role), f"{commands} {_CONNECTION}", keys) for role, (commands, keys) in RULES.items()]
        rules.append((SERVERS, _SET, "allchannels"))
        lines = [_EVERYONE, *(_user(*rule, _password(directory / rule[0] / PASSWORD)) for rule in rules)]
        replace_file(users, "".join(f"{line}\n" for line in lines).encode(), mode=_USERS_MODE)
    except OSError as error:
        raise StartupError(f"{error.filename or users}: {error.strerror}") from error
    return users


def _password(path: Path) -> bytes:
    if not path.exists():
        write_private(path.parent, {path.name: secrets.token_urlsafe(_PASSWORD_BYTES).encode()})
    return read_trusted(path, secret=True)


def _user(name: str, commands: str, reach: str, password: bytes) -> str:
    allowed = " ".join(f"+{command}" for command in commands.split())
    return f"user {name} on #{hashlib.sha256(password).hexdigest()} resetkeys resetchannels {reach} -@all {allowed}"
