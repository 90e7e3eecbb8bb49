"""Finished guests, each in a folder named by the digest of its inputs."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

from packages import Package, lists_signature

HERE = Path(__file__).resolve().parent


class GuestCache:
    """A folder of finished guests, of the packages they were made from, and of what apt last said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.packages = folder / "packages"
        self.own_lists = folder / "apt"
        self.scripts = scripts_digest()
        self._known = folder / "known.json"

    def key(self, packages: list[Package]) -> str:
        lines = [f"scripts {self.scripts}", *sorted(f"{p.name} {p.version} {p.sha256}" for p in packages)]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]

    def known_key(self) -> str | None:
        """Key of these scripts and of apt's lists as they are, without asking apt; None if not known."""
        try:
            known = json.loads(self._known.read_text())
        except (OSError, ValueError):
            return None
        same = known.get("scripts") == self.scripts and known.get("lists") == lists_signature()
        return known.get("key") if same else None

    def remember(self, key: str) -> None:
        text = json.dumps({"scripts": self.scripts, "lists": lists_signature(), "key": key})
        self.folder.mkdir(parents=True, exist_ok=True)
        new = self.folder / f"known.json.{os.getpid()}"
        new.write_text(text)
        new.rename(self._known)

    def finished(self, key: str | None) -> Path | None:
        folder = self.folder / key if key else None
        return folder if folder and (folder / "image.json").exists() else None

    def newest_of_these_scripts(self) -> Path | None:
        """Find the newest finished guest of these scripts, whatever its packages."""
        found: list[tuple[int, Path]] = []
        for description in self.folder.glob("*/image.json"):
            if json.loads(description.read_text())["inputs"]["scripts"] == self.scripts:
                found.append((description.stat().st_mtime_ns, description.parent))
        return max(found)[1] if found else None

    @contextlib.contextmanager
    def lock(self) -> Generator[None]:
        """Hold the cache for one build at a time; freed by the kernel if the builder dies."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            for left_over in self.folder.glob("building-*"):
                shutil.rmtree(left_over)
            yield

    @contextlib.contextmanager
    def new(self, key: str) -> Generator[Path]:
        """Give an empty folder; publish its subfolder `out` under the key by one rename at the end."""
        work = Path(tempfile.mkdtemp(prefix="building-", dir=self.folder))
        try:
            (work / "out").mkdir()
            yield work
            (work / "out").rename(self.folder / key)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def scripts_digest() -> str:
    """Digest of everything beside this file that shapes a guest."""
    digest = hashlib.sha256()
    for file in sorted(HERE.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            digest.update(f"{file.relative_to(HERE)} {content}\n".encode())
    return digest.hexdigest()
