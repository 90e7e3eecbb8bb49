"""The processes of a larger installation, each become by this command."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

from cyclopts import Parameter

Words = Annotated[str, Parameter(allow_leading_hyphen=True, help="Options of the process itself.")]


def api(*words: Words) -> None:
    """Become the API."""
    become("workers.api", words)


def control(*words: Words) -> None:
    """Become a control worker: it runs workflows and writes rows."""
    become("workers.control", words)


def gateway(*words: Words) -> None:
    """Become the gateway: all that hosts reach of Temporal."""
    become("workers.gateway", words)


def host(*words: Words) -> None:
    """Become this machine's host worker; takes root.

    `--join FILE` (or `-`: standard input) holds what `hostler host add` printed, and is needed the first time only.
    A host takes caps then, a little less than its machine has, unless `--max-vcpus`, `--max-memory` (MiB),
    `--max-disk` (GiB) or `--no-caps` say otherwise.
    With `--no-disk-overcommit` disks are promised no more than the filesystem can hold.
    """
    become("workers.host", words)


def replay(vm: str) -> None:
    """Replay what a VM's runs did against this release's code. Takes what a control worker takes, root as a rule.

    :param vm: Name or id.
    """
    from cli.client import Api

    with Api() as api:
        vm_id = api.find_vm_id(vm)
    become("workers.replay", (vm_id,))


def become(module: str, words: tuple[str, ...]) -> NoReturn:
    """Become `python -m module`."""
    sys.stdout.flush()
    sys.stderr.flush()
    # -P: the working directory is not a place to import from.
    os.execve(sys.executable, [sys.executable, "-P", "-m", module, *words], child_environment())  # noqa: S606


def child_environment() -> dict[str, str]:
    """Return our environment, by which a process of ours finds our packages without the working directory."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
