"""Debian packages of the guest: which, in which version, and their verified files."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

NAMES = (Path(__file__).resolve().parent / "packages.txt").read_text().split()
KERNEL_METAPACKAGE = "linux-image-cloud-amd64"
URI_LINE = re.compile(r"^'(?P<uri>[^']+)' (?P<file>\S+) (?P<size>\d+) SHA256:(?P<sha256>[0-9a-f]{64})$")


class AptError(Exception):
    """apt could not name or bring a package; the text says which call failed and how."""


@dataclass(frozen=True)
class Package:
    """One package file as apt's signed lists describe it."""

    name: str
    version: str
    file: str
    sha256: str


class Apt:
    """Ask apt, with the machine's lists or with lists of our own.

    Own lists need no root; they serve where the machine has none, or has some so old that
    their files are gone from the mirror.
    """

    def __init__(self, own_lists: Path | None = None) -> None:
        self.options = ["-q", "-o", "APT::Sandbox::User=root"]
        if own_lists is not None:
            for folder in ("lists/partial", "cache/archives/partial"):
                (own_lists / folder).mkdir(parents=True, exist_ok=True)
            self.options += ["-o", f"Dir::State::lists={own_lists}/lists", "-o", f"Dir::Cache={own_lists}/cache"]

    def update(self) -> None:
        self._run("apt-get", "update", "-o", "APT::Update::Error-Mode=any")

    def resolve(self) -> list[Package]:
        """Name every package of the guest, the current kernel last, with version and SHA-256."""
        depends = self._run("apt-cache", "depends", KERNEL_METAPACKAGE)
        kernel = re.search(r"Depends: (linux-image-\d\S*)", depends)
        if kernel is None:
            raise AptError(f"{KERNEL_METAPACKAGE} depends on no kernel that apt knows")
        names = [*NAMES, kernel.group(1)]
        lines = self._run("apt-get", "download", "--print-uris", *names).splitlines()
        found = {p.name: p for line in lines if (p := parse_uri_line(line))}
        missing = [name for name in names if name not in found]
        if missing:
            raise AptError(f"apt names no file with a SHA-256 for {', '.join(missing)}")
        return [found[name] for name in names]

    def fetch(self, packages: list[Package], folder: Path) -> None:
        """Bring the packages' files into the folder; leave exactly these there, each verified."""
        folder.mkdir(parents=True, exist_ok=True)
        wanted = {package.file: package for package in packages}
        for file in folder.iterdir():
            if file.name not in wanted or sha256_of(file) != wanted[file.name].sha256:
                file.unlink()
        absent = [p for p in packages if not (folder / p.file).exists()]
        if not absent:
            return
        self._run("apt-get", "download", *(f"{p.name}={p.version}" for p in absent), cwd=folder)
        for package in absent:
            file = folder / package.file
            if not file.exists() or sha256_of(file) != package.sha256:
                file.unlink(missing_ok=True)
                raise AptError(f"{package.file}: what apt brought is not what its lists promise")

    def _run(self, program: str, *arguments: str, cwd: Path | None = None) -> str:
        done = subprocess.run(
            [program, *self.options, *arguments],
            capture_output=True,
            text=True,
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
            check=False,
        )
        if done.returncode:
            complaint = "; ".join(line for line in done.stderr.splitlines() if line.startswith(("E:", "W:")))
            raise AptError(f"{program} {arguments[0]} ended with {done.returncode}: {complaint}")
        return done.stdout


def parse_uri_line(line: str) -> Package | None:
    """Read one line of `apt-get download --print-uris`; None for any other line."""
    match = URI_LINE.match(line)
    if match is None:
        return None
    name, version, _ = match["file"].split("_", 2)
    return Package(name, unquote(version), match["file"], match["sha256"])


def lists_signature() -> str:
    """Digest of which package lists this machine has; changes with every `apt-get update` that brings news."""
    digest = hashlib.sha256()
    for file in sorted(Path("/var/lib/apt/lists").glob("*_Packages*")):
        status = file.stat()
        digest.update(f"{file.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def sha256_of(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
