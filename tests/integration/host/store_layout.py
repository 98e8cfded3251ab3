"""An Ollama store laid out by hand, as its format is documented: blobs by digest, manifests by name."""

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path

import orjson

DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
PREFIX = "application/vnd.ollama.image."


@dataclass(kw_only=True)
class LaidOut:
    """One store. Nothing of Puna's own code writes here."""

    directory: Path
    inodes: dict[str, int] = field(default_factory=dict)  # by digest

    def blob(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        path = self.path(digest)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(0o444)
        self.inodes[digest] = path.stat().st_ino
        return digest

    def path(self, digest: str) -> Path:
        return self.directory / "blobs" / f"sha256-{digest}"

    def layer(self, kind: str, content: bytes, **more: object) -> dict[str, object]:
        digest = self.blob(content)
        media_type = kind if "/" in kind else PREFIX + kind
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content), **more}

    def manifest(
        self, name: str, *layers: dict[str, object], config: dict[str, object] | None = None
    ) -> tuple[Path, str]:
        """Write `manifests/<name>`, four parts; the file and its digest."""
        said = {"model_format": "gguf", "model_family": "llama", **(config or {})}
        content = orjson.dumps(
            {
                "schemaVersion": 2,
                "mediaType": DOCKER_MANIFEST,
                "config": self.layer(CONFIG, orjson.dumps(said)),
                "layers": list(layers),
            }
        )
        path = self.directory / "manifests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # As another program does it: the whole file appears at once.
        partial = path.parent / ".partial"
        partial.write_bytes(content)
        partial.replace(path)
        return path, hashlib.sha256(content).hexdigest()

    def library(
        self, name: str, *layers: dict[str, object], tag: str = "latest", config: dict[str, object] | None = None
    ) -> tuple[Path, str]:
        return self.manifest(f"registry.ollama.ai/library/{name}/{tag}", *layers, config=config)

    def blob_names(self) -> set[str]:
        return {path.name for path in (self.directory / "blobs").iterdir()}

    def unchanged(self) -> bool:
        """Return True if every blob is the file that was laid out."""
        return all(self.path(digest).stat().st_ino == inode for digest, inode in self.inodes.items())


def is_root() -> bool:
    return os.geteuid() == 0
