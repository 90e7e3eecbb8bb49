"""Logging in: which ssh command is run, and what it is told to trust."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli import ssh_trust, vm_ssh
from cli.failures import Unsuccessful
from cli.place import Place
from cli.ssh_trust import Trust, quote_path
from cli.vm_ssh import answers, await_port, guest_namespace, mark_command, ssh_command
from tests.cli.conftest import Runner
from tests.cli.fleet import HOST_KEY, VM_ID, Fleet, vm


@pytest.fixture
def fake_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `ssh` that writes down what it was called with, and ends with 7."""
    record = tmp_path / "record"
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "ssh"
    program.write_text(f'#!/bin/sh\nfor word in "$@"; do printf "%s\\0" "$word"; done > {record}\nexit 7\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return record


def run_ssh(command: list[str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*command, "vm", "ssh", *words], capture_output=True, text=True, timeout=60)


def test_the_host_key_of_the_row_is_the_only_one_that_counts(
    fleet: Fleet, command: list[str], home: Path, fake_ssh: Path
) -> None:
    """The row's key, under an alias of the VM's id, in a file of its own; nothing is trusted on first use."""
    (home / "ssh").mkdir()
    (home / "ssh" / "id_ed25519").write_text("key")
    fleet.states = [vm(phase="creating")]
    found = run_ssh(command, "web-1", "--user", "admin", "ls", "-l", "--json", "a b")
    assert found.returncode == 7, found.stderr
    words = fake_ssh.read_text().split("\0")[:-1]
    known = home / "ssh" / "known_hosts" / VM_ID
    assert known.read_text() == f"hostler-{VM_ID} {HOST_KEY}\n"
    assert (known.stat().st_mode & 0o777, known.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    options = {words[at + 1] for at, word in enumerate(words) if word == "-o"}
    assert options >= {
        f"HostKeyAlias=hostler-{VM_ID}",
        f'UserKnownHostsFile="{known}"',
        "GlobalKnownHostsFile=/dev/null",
        "StrictHostKeyChecking=yes",
        "IdentitiesOnly=yes",
    }
    assert words[words.index("-i") + 1] == str(home / "ssh" / "id_ed25519")
    assert words[words.index("-l") :] == ["-l", "admin", "127.0.0.1", "--", "ls", "-l", "--json", "a b"]
    assert list(known.parent.iterdir()) == [known]


def test_real_ssh_understands_the_options(tmp_path: Path) -> None:
    """OpenSSH itself reads the command line and says what it makes of it."""
    known = tmp_path / "a folder with %d" / "known"
    trust = Trust(f"hostler-{VM_ID}", "ssh-ed25519", known)
    words = ssh_command(trust, "192.0.2.1", user="root", identities=(tmp_path / "id",))
    found = subprocess.run(["ssh", "-F", "/dev/null", "-G", *words], capture_output=True, text=True, check=True)
    settings = dict(line.split(" ", 1) for line in found.stdout.splitlines() if " " in line)
    assert settings["hostkeyalias"] == f"hostler-{VM_ID}"
    assert settings["userknownhostsfile"].strip('"') in (str(known), str(known).replace("%", "%%"))
    assert settings["stricthostkeychecking"] in ("true", "yes")
    assert (settings["user"], settings["hostname"]) == ("root", "192.0.2.1")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"addresses": {"ip": "-oProxyCommand=touch /tmp/x"}}, "no address"),
        ({"addresses": {"ip": None}}, "no address"),
        ({"addresses": "x"}, "no address"),
        ({"ssh_host_key": None}, "no host key"),
        ({"ssh_host_key": HOST_KEY + "\n* " + HOST_KEY}, "no host key"),
        ({"ssh_host_key": "ssh-rsa AAAA"}, "no host key"),
        ({"ssh_host_key": "* " + HOST_KEY}, "no host key"),
        ({"id": "../../x"}, "no VM id"),
    ],
)
def test_a_row_that_is_odd_reaches_no_ssh(
    fleet: Fleet, hostler: Runner, fake_ssh: Path, changes: dict[str, object], words: str, home: Path
) -> None:
    fleet.listed = [vm()]
    fleet.states = [vm(phase="creating", **changes)]
    found = hostler("vm", "ssh", "web-1")
    assert found.code == 1
    assert words in found.err
    assert not fake_ssh.exists()
    assert not [path for path in home.rglob("*") if path.is_file()]


def test_a_user_that_is_an_option_is_refused(fleet: Fleet, hostler: Runner, fake_ssh: Path) -> None:
    assert hostler("vm", "ssh", "web-1", "--user=-oProxyCommand=x").code == 2
    assert hostler("vm", "ssh", "web-1", "--identity", "/nonexistent").code == 2
    assert not fake_ssh.exists()


@pytest.mark.parametrize(
    ("given", "marked"),
    [
        (["web"], ["web"]),
        (["web", "ls", "-l"], ["web", "--", "ls", "-l"]),
        (["web", "--identity", "f", "ls", "--help"], ["web", "--identity", "f", "--", "ls", "--help"]),
        (["--user", "u", "web", "sh", "-c", "x"], ["--user", "u", "web", "--", "sh", "-c", "x"]),
        (["--user=u", "web", "ls"], ["--user=u", "web", "--", "ls"]),
        (["web", "--", "ls", "--user"], ["web", "--", "ls", "--user"]),
        (["--help"], ["--help"]),
        (["web", "--help"], ["web", "--help"]),
        (["web", "-i"], ["web", "-i"]),
        ([], []),
    ],
)
def test_the_commands_options_stay_its_own(given: list[str], marked: list[str]) -> None:
    assert mark_command(given) == marked


@pytest.mark.parametrize("text", ['/a"b', "/a$b", "/a\nb", "/a\\b"])
def test_a_path_that_ssh_would_read_otherwise_is_refused(text: str) -> None:
    with pytest.raises(Unsuccessful):
        quote_path(Path(text))


def test_another_users_installation_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may read a state directory but not write there keeps known hosts in a folder of their own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = ssh_trust.known_hosts_folder(Place("http://x", None, tmp_path / "missing"))
    assert folder == tmp_path / "state" / "hostler" / "known_hosts"


def test_guests_in_a_namespace_are_reached_through_it(
    fleet: Fleet, hostler: Runner, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "settings.json").write_text(json.dumps({"netns": "guests-1"}))
    became: list[list[str]] = []

    def execv(_path: str, words: list[str]) -> None:
        became.append(words)

    monkeypatch.setattr(os, "execv", execv)
    assert hostler("vm", "ssh", "web-1").code == 0
    assert became[0][1:4] == ["netns", "exec", "guests-1"]
    assert became[0][4].endswith("/ssh")


def test_each_host_of_a_machine_has_its_guests_in_its_own_namespace(home: Path) -> None:
    """A VM is looked for where its host is, by the host's own file; one of another machine, where the first is."""
    further = [{"number": number, "netns": f"one-h{number}"} for number in (2, 3)]
    (home / "settings.json").write_text(json.dumps({"netns": "one-h1", "further_hosts": further}))
    for number in (2, 3):
        folder = home / "hosts" / str(number) / "host"
        folder.mkdir(parents=True)
        (folder / "host.json").write_text(json.dumps({"host_id": f"id-{number}"}))
    place = Place("http://x", None, home)
    found = [guest_namespace(place, {"host": {"id": f"id-{number}"}}) for number in (1, 2, 3)]
    assert found == ["one-h1", "one-h2", "one-h3"]
    assert guest_namespace(place, {}) == "one-h1"


@pytest.fixture
def greeter(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A listener on a free port that takes port 22's part; the test decides what it says."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        connect = socket.create_connection

        def elsewhere(address: tuple[str, int], timeout: float) -> socket.socket:
            assert address[1] == 22
            return connect((address[0], port), timeout=timeout)

        monkeypatch.setattr(socket, "create_connection", elsewhere)
        yield listener


def test_waits_for_the_banner(greeter: socket.socket) -> None:
    def greet() -> None:
        for banner in (b"", b"HTTP", b"SSH-2.0-test\r\n"):
            connection, _ = greeter.accept()
            connection.sendall(banner)
            connection.close()

    thread = threading.Thread(target=greet)
    thread.start()
    assert await_port("127.0.0.1", 10)
    thread.join()


def test_the_wait_is_bounded(greeter: socket.socket) -> None:
    """A server that takes connections and says nothing holds nobody up for long."""
    assert not answers("127.0.0.1", 0.05)
    assert not await_port("127.0.0.1", 0.1)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"power_state": "stopped", "desired_power_state": "stopped"}, "web-1 is stopped: `hostler vm start web-1`"),
        ({"power_state": "paused", "desired_power_state": "paused"}, "web-1 is paused: `hostler vm resume web-1`"),
        ({"quarantine": {"kind": "deleted"}}, "web-1 was deleted: `hostler vm undelete web-1` brings it back"),
    ],
)
def test_whoever_cannot_answer_is_not_waited_for(changes: dict[str, object], told: str) -> None:
    with pytest.raises(Unsuccessful) as found:
        vm_ssh.check_running(vm(phase="ready", name="web-1") | changes)
    assert found.value.detail == told


def test_the_user_s_own_keys_are_tried_after_the_installation_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A VM made with `--ssh-key ~/.ssh/id_ed25519.pub` knows only the user's key."""
    place = Place("http://127.0.0.1:1", None, tmp_path / "state")
    own = tmp_path / ".ssh" / "id_ed25519"
    for path in (place.identity, own):
        path.parent.mkdir(parents=True)
        path.write_text("key")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SUDO_UID", raising=False)
    assert vm_ssh.choose_identities(None, place) == (place.identity, own)
    assert vm_ssh.choose_identities(own, place) == (own,)


CERTIFIED = {"host_certificate": {"serial": 3, "valid_until": "2999-01-01T00:00:00+00:00"}}
CA_KEY, REVOKED_KEY = "ssh-ed25519 " + "B" * 68, "ssh-ed25519 " + "C" * 68
CA = {"host_ca": CA_KEY, "domain": "vms.test", "revoked": [{"serial": 1, "public_key": REVOKED_KEY}]}


def test_a_certified_vm_is_known_by_its_certificate_alone(
    fleet: Fleet, command: list[str], home: Path, fake_ssh: Path
) -> None:
    """S-41: the authority counts for the VM's id, revoked keys are refused, the bare key of the row counts no more."""
    fleet.states = [vm(phase="creating", **CERTIFIED)]
    fleet.answers["GET", "/v1/ssh-ca"] = (200, CA)
    found = run_ssh(command, "web-1")
    assert found.returncode == 7, found.stderr
    folder = home / "ssh" / "known_hosts"
    assert (folder / f"{VM_ID}.ca").read_text() == f"@cert-authority {VM_ID} {CA_KEY}\n"
    assert (folder / f"{VM_ID}.revoked").read_text() == f"{REVOKED_KEY}\n"
    words = fake_ssh.read_text().split("\0")[:-1]
    options = {words[at + 1] for at, word in enumerate(words) if word == "-o"}
    assert options >= {
        f"HostKeyAlias={VM_ID}",
        "HostKeyAlgorithms=ssh-ed25519-cert-v01@openssh.com",
        f'RevokedHostKeys="{folder / f"{VM_ID}.revoked"}"',
        "StrictHostKeyChecking=yes",
    }
    assert not (folder / VM_ID).exists()


@pytest.mark.parametrize(
    ("certificate", "ca", "words"),
    [
        ({"serial": None, "valid_until": None}, CA, "no host certificate yet"),
        ({"serial": 3, "valid_until": "2020-01-01T00:00:00+00:00"}, CA, "ended at 2020-01-01"),
        ("x", CA, "no host certificate yet"),
        (CERTIFIED["host_certificate"], {**CA, "host_ca": None}, "no SSH CA"),
        (CERTIFIED["host_certificate"], {**CA, "host_ca": f"* {CA_KEY}"}, "no SSH CA"),
        (CERTIFIED["host_certificate"], {**CA, "revoked": None}, "no SSH CA"),
        (CERTIFIED["host_certificate"], {**CA, "revoked": [{"public_key": "x"}]}, "no SSH CA"),
    ],
)
def test_without_a_certificate_that_holds_nobody_is_called(
    fleet: Fleet, hostler: Runner, fake_ssh: Path, home: Path, certificate: object, ca: object, words: str
) -> None:
    """S-41: missing, ended, or without what it is checked by; the row's own key is no way out."""
    fleet.listed = [vm()]
    fleet.states = [vm(phase="creating", host_certificate=certificate)]
    fleet.answers["GET", "/v1/ssh-ca"] = (200, ca)
    found = hostler("vm", "ssh", "web-1")
    assert found.code == 1
    assert words in found.err
    assert not fake_ssh.exists()


def test_the_authority_is_shown_as_lines_of_known_hosts(fleet: Fleet, hostler: Runner) -> None:
    fleet.answers["GET", "/v1/ssh-ca"] = (200, CA)
    found = hostler("ssh-ca", "show")
    assert found.out == f"@cert-authority *.vms.test {CA_KEY}\n@revoked * {REVOKED_KEY}\n"
    fleet.answers["GET", "/v1/ssh-ca"] = (200, {**CA, "host_ca": None})
    assert hostler("ssh-ca", "show").code == 1
