"""The VM `demo`, which `hostler up` ends with: made once, with a key of its own to log in with."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from cli.client import Api
from cli.document import Document, documents
from cli.failures import Unsuccessful
from cli.follow import check_outcome
from cli.vm_create import follow_create, send
from cli.vm_ssh import answers, guest_namespace, read_address

NAME = "demo"
SSH_SECONDS = 120.0
_KEYGEN_SECONDS = 30.0


def ensure_demo(api: Api, image: str, *, silent: bool) -> Document:
    """Return the VM `demo` as it is, or make it and wait until it is ready and SSH answers."""
    found = documents(api.get("/v1/vms", name=NAME), "items")
    if found:
        vm = api.get(f"/v1/vms/{found[0]['id']}")
        wanted = vm.get("desired_power_state") == "running" and not vm.get("quarantine")
        if not wanted or vm.get("phase") == "failed":
            return vm
    else:
        key = ensure_key(api.place.identity)
        vm = send(api, {"name": NAME, "image": image, "ssh_authorized_keys": [key]})
    vm = follow_create(api, vm, silent=silent)
    check_outcome(vm)
    if guest_namespace(api.place, vm) is None:
        await_ssh(vm, silent=silent)
    return vm


def await_ssh(vm: Document, *, silent: bool) -> None:
    """Wait until the guest's SSH server greets. Errors: Unsuccessful, when it does not in two minutes."""
    import time

    from cli.progress import make_display
    from cli.steps import Stand

    address = read_address(vm)
    deadline = time.monotonic() + SSH_SECONDS
    with make_display(str(vm.get("name")), 0, silent=silent) as display:
        display.show(Stand(0, "waiting for SSH", ""))
        while not answers(address, 2.0):
            if time.monotonic() > deadline:
                raise Unsuccessful(f"{vm.get('name')} is ready, but SSH does not answer: `hostler vm console {NAME}`")
            time.sleep(0.2)


def ensure_key(path: Path) -> str:
    """Return the public line of the installation's own ed25519 key; make the key if there is none."""
    folder = path.parent
    public = path.with_suffix(".pub")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            make_key(path)
        if not public.exists():
            public.write_bytes(_keygen("-y", "-P", "", "-f", str(path)))
        return public.read_text().strip()
    except OSError as error:
        raise Unsuccessful(f"the key for {NAME} cannot be kept in the state directory: {error.strerror}") from error


def make_key(path: Path) -> None:
    """Make a key beside its place and move it there whole, the public half first."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new_public = new.with_name(f"{new.name}.pub")
    for left in (new, new_public):
        left.unlink(missing_ok=True)
    # The empty passphrase is no secret; the key itself never is an argument.
    _keygen("-q", "-t", "ed25519", "-N", "", "-C", "hostler", "-f", str(new))
    new.chmod(0o600)
    new_public.rename(path.with_suffix(".pub"))
    new.rename(path)


def _keygen(*words: str) -> bytes:
    try:
        made = subprocess.run(
            ["ssh-keygen", *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=_KEYGEN_SECONDS, check=True
        )
    except FileNotFoundError as error:
        raise Unsuccessful("there is no ssh-keygen on the PATH: install the OpenSSH client") from error
    except subprocess.SubprocessError as error:
        raise Unsuccessful("ssh-keygen could not make or read the key for the demo VM") from error
    return made.stdout


def demo_line(vm: Document) -> str:
    """Say in a line what became of `demo`."""
    if vm.get("phase") == "ready" and vm.get("power_state") == "running":
        return f"ready at {read_address(vm)}"
    error = f": {vm['last_error']}" if vm.get("last_error") else ""
    return f"{vm.get('phase')}, {vm.get('power_state') or 'state unknown'}{error}"
