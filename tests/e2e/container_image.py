"""Parts of an image of Puna where nothing can be pulled: base, wheels and source, all from this machine.

The base comes from debootstrap and the mirror that apt itself uses; the engine's wheel is the one that is installed
here, packed up again; the other wheels are downloaded by hash. All but the source is kept in a cache.
"""

import base64
import csv
import hashlib
import importlib.metadata
import io
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path.home() / ".cache" / "puna-test"
ENGINE = "llama-cpp-python"
DEBIAN_PYTHON = "/usr/bin/python3"
BASE_PACKAGES = ("ca-certificates", "libgomp1", "python3", "python3-venv")

# Memory takes dpkg's many small synchronous writes several times faster than a disk.
BOOTSTRAP_SCRIPT = f"""
mount -t tmpfs tmpfs "$1"
debootstrap --variant=minbase --include={",".join(BASE_PACKAGES)} "$3" "$1" "$4"
tar --create --file="$2" --directory="$1" --exclude='./var/cache/apt/*' --exclude='./var/lib/apt/lists/*' .
"""


class ImageUnavailable(Exception):
    """The parts of an image cannot be had here; the text says why."""


def base_archive() -> Path:
    """Root file system of a minimal Debian with Python, of the release that this machine runs.

    Raises:
        ImageUnavailable: this is no Debian, or its mirror does not answer.
    """
    release = _os_release().get("VERSION_CODENAME", "")
    key = hashlib.sha256(" ".join((release, *BASE_PACKAGES)).encode()).hexdigest()[:12]
    archive = CACHE / f"base-{release}-{key}.tar"
    if not archive.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            partial = Path(scratch, "base.tar")
            _bootstrap(release, Path(scratch, "root"), partial)
            partial.rename(archive)  # whole or not at all
    return archive


def _os_release() -> dict[str, str]:
    pairs = (line.partition("=") for line in Path("/etc/os-release").read_text().splitlines())
    return {name: value.strip('"') for name, _, value in pairs}


def _bootstrap(release: str, root: Path, archive: Path) -> None:
    fields = ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages", "Origin: Debian"]
    mirrors = _run(*fields, f"Codename: {release}").split()
    if not mirrors:
        raise ImageUnavailable(f"apt knows no Debian mirror of release {release!r}; run apt-get update")
    root.mkdir()
    # In namespaces of its own: the mounts that it makes are gone even if it is killed.
    isolated = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child=KILL", "sh", "-euc")
    _run(*isolated, BOOTSTRAP_SCRIPT, "bootstrap", str(root), str(archive), release, mirrors[0])


def collect_wheels(target: Path) -> None:
    """Put a wheel of every locked requirement into `target`; the hashes of the lock hold for all but the engine's.

    Raises:
        ImageUnavailable: a wheel cannot be downloaded.
    """
    lock = (ROOT / "requirements.lock").read_text()
    cached = CACHE / f"wheels-{hashlib.sha256(lock.encode()).hexdigest()[:12]}"
    if not cached.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            rest, partial = Path(scratch, "rest.lock"), Path(scratch, "wheels")
            rest.write_text("".join(block for block in _requirements(lock) if not block.startswith(f"{ENGINE}==")))
            # For this Debian's interpreter, which is the base's: the lock's markers look at its exact version.
            pip = (sys.executable, "-m", "pip", "--python", DEBIAN_PYTHON, "download", "--quiet", "--no-deps")
            _run(*pip, "--require-hashes", "--only-binary=:all:", "--dest", str(partial), "--requirement", str(rest))
            partial.rename(cached)  # whole or not at all
    shutil.copytree(cached, target, dirs_exist_ok=True)
    pack_installed(ENGINE, target)


def _requirements(lock: str) -> list[str]:
    """One text per requirement: its line and the indented ones that belong to it."""
    return re.findall(r"^\S.*\n(?:[ \t].*\n)*", lock, re.MULTILINE)


def pack_installed(name: str, target: Path) -> Path:
    """Make a wheel of an installed package: the reverse of pip, so that what is tested here is what the image runs."""
    distribution = importlib.metadata.distribution(name)
    text = distribution.read_text("WHEEL") or ""
    tags = re.findall(r"^Tag: (\S+)$", text, re.MULTILINE)
    wheel = target / f"{name.replace('-', '_')}-{distribution.version}-{tags[0]}.whl"
    information = next(file.parent for file in distribution.files or () if file.name == "METADATA")
    made_by_pip = {str(information / item) for item in ("INSTALLER", "REQUESTED", "RECORD", "direct_url.json")}
    rows = io.StringIO()
    record = csv.writer(rows, lineterminator="\n")
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED) as archive:
        for file in distribution.files or ():
            if ".." in file.parts or "__pycache__" in file.parts or str(file) in made_by_pip:
                continue
            content = Path(str(distribution.locate_file(file))).read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            archive.writestr(str(file), content)
            record.writerow((str(file), f"sha256={digest}", len(content)))
        record.writerow((str(information / "RECORD"), "", ""))
        archive.writestr(str(information / "RECORD"), rows.getvalue())
    return wheel


PROMETHEUS_DOCKERFILE = """
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
COPY usr /usr
RUN install -d -o 65534 -g 65534 /prometheus
USER 65534
ENTRYPOINT ["prometheus"]
"""


def collect_prometheus(target: Path) -> None:
    """Collect the parts of an image like that of the Prometheus project: the Debian package that is installed here.

    Raises:
        ImageUnavailable: it is not installed.
    """
    for name in ("prometheus", "promtool"):
        program = shutil.which(name)
        if program is None:
            raise ImageUnavailable(f"{name} is not installed (`make deps-system` installs it)")
        (target / "usr" / "bin").mkdir(parents=True, exist_ok=True)
        shutil.copy2(program, target / "usr" / "bin" / name)
    (target / "Dockerfile").write_text(PROMETHEUS_DOCKERFILE)


def copy_source(target: Path) -> None:
    """Copy what version control knows or would take: the tree as a fresh clone would have it, with today's edits."""
    listed = _run("git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    for name in filter(None, listed.split("\0")):
        source, copy = ROOT / name, target / name
        if source.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy)


def _run(*command: str) -> str:
    finished = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if finished.returncode != 0:
        raise ImageUnavailable(f"{command[0]} exited with {finished.returncode}: {finished.stderr[-2000:].strip()}")
    return finished.stdout
