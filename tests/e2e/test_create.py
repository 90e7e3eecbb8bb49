"""`make up`, then a VM that answers SSH: the first thing that a newcomer sees."""

from __future__ import annotations

import time

from tests.e2e.installation import Installation


def test_a_vm_is_ready_and_answers_ssh(fleet: Installation):
    """A progress bar, ready within 30 s, and SSH with the host key checked against the row."""
    started = time.monotonic()
    done = fleet.hostler(
        "vm",
        "create",
        "web-1",
        "--image",
        "demo",
        "--memory",
        "128",
        "--ssh-key",
        str(fleet.home / "ssh" / "id_ed25519.pub"),
    )
    assert "ready" in done.stdout + done.stderr
    assert time.monotonic() - started < 30
    assert fleet.ssh("web-1", "hostname").strip() == "web-1"
    row = fleet.row("web-1")
    known = fleet.ssh("web-1", "cat /etc/ssh/ssh_host_ed25519_key.pub")
    assert row["ssh_host_key"].split()[1] in known


def test_passes_do_not_compile_their_code_anew(fleet: Installation):
    """The sandbox imports the workflows for every pass; what they were compiled to is kept."""
    assert list((fleet.home / "api" / "code").rglob("workflows/create.*.pyc"))


def test_a_second_up_adopts_what_runs(fleet: Installation):
    """Seconds; no process and no guest is started anew."""
    names = ("postgres", "temporal", "api", "control", "host")
    before = {name: fleet.process(name) for name in names}, fleet.guests()
    started = time.monotonic()
    fleet.up()
    assert time.monotonic() - started < 20
    assert ({name: fleet.process(name) for name in names}, fleet.guests()) == before
