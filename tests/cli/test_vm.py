"""Making and changing VMs: the bodies that are sent, the progress that is shown, the exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from cli import follow
from cli.steps import CREATE, Steps
from model.step import WORDS, StepKind
from tests.cli.conftest import Runner
from tests.cli.fleet import VM_ID, Fleet, problem, step, vm

WALK = [step(WORDS[kind]) for kind in CREATE]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(follow, "LONGEST_PAUSE_SECONDS", 0.01)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    made = tmp_path / "id.pub"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "me", "-f", tmp_path / "id"], check=True)
    return made


def test_create_sends_what_was_given(fleet: Fleet, hostler: Runner, key: Path, tmp_path: Path) -> None:
    data = tmp_path / "user-data"
    data.write_text("#cloud-config\n")
    words = (
        *("vm", "create", "web-1", "--image", "demo", "--cpus", "1.5", "--memory", "2G", "--disk", "20G"),
        *("--ssh-key", str(key), "--ssh-key", str(key), "--user-data", str(data), "--label", "a=b=c"),
        *("--metadata", "k=", "--power-state", "stopped", "--on-guest-poweroff", "stop", "--stop-timeout", "2m"),
        *("--boot-priority", "-5", "--host", "host-1", "--no-wait", "--json"),
    )
    found = hostler(*words)
    assert (found.code, found.err) == (0, "")
    line = key.read_text().strip()
    assert fleet.asked[0].body == {
        "name": "web-1",
        "image": "demo",
        "host": "host-1",
        "cpu_millicores": 1500,
        "memory_mib": 2048,
        "disk_gib": 20,
        "ssh_authorized_keys": [line, line],
        "user_data": "#cloud-config\n",
        "labels": {"a": "b=c"},
        "metadata": {"k": ""},
        "power_state": "stopped",
        "on_guest_poweroff": "stop",
        "stop_timeout_seconds": 120,
        "boot_priority": -5,
    }


def test_create_leaves_out_what_was_not_given(fleet: Fleet, hostler: Runner) -> None:
    """The defaults are the API's."""
    assert hostler("vm", "create", "web-1", "--image", "demo").code == 0
    assert fleet.asked[0].body == {"name": "web-1", "image": "demo"}


def test_create_without_a_key_takes_the_installations_own(fleet: Fleet, hostler: Runner, key: Path, home: Path) -> None:
    """The key that `hostler vm ssh` tries first: a VM that nobody can log in to is of no use."""
    (home / "ssh").mkdir()
    own = home / "ssh" / "id_ed25519.pub"
    own.write_text(key.read_text())
    assert hostler("vm", "create", "web-1", "--image", "demo", "--no-wait").code == 0
    assert fleet.asked[0].body["ssh_authorized_keys"] == [key.read_text().strip()]


def test_create_by_url_and_id(fleet: Fleet, hostler: Runner) -> None:
    """L-N4: with an id of the caller's the same command again is the same request."""
    digest = "a" * 64
    words = ("--image-url", "https://images.test/i?sig=s", "--sha256", digest, "--format", "raw", "--id", "my-id")
    assert hostler("vm", "create", "web-1", *words, "--no-wait").code == 0
    asked = fleet.asked[0]
    assert (asked.method, asked.path) == ("PUT", "/v1/vms/my-id")
    assert asked.body["image"] == {"url": "https://images.test/i?sig=s", "sha256": digest, "format": "raw"}


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--image", "a", "--image-url", "b"),
        ("--image-url", "b"),
        ("--image", "a", "--sha256", "b"),
        ("--image", "a", "--memory", "1.5G"),
        ("--image", "a", "--memory", "512K"),
        ("--image", "a", "--cpus", "x"),
        ("--image", "a", "--disk", "-1"),
        ("--image", "a", "--disk", "10M"),
        ("--image", "a", "--label", "novalue"),
        ("--image", "a", "--label", "a=1", "--label", "a=2"),
        ("--image", "a", "--ssh-key", "/nonexistent"),
        ("--image", "a", "--user-data", "/nonexistent"),
        ("--image", "a", "--power-state", "flying"),
        ("--image", "a", "--id", "../x"),
    ],
    ids=" ".join,
)
def test_create_refuses_before_it_asks(fleet: Fleet, hostler: Runner, words: tuple[str, ...]) -> None:
    found = hostler("vm", "create", "web-1", *words)
    assert (found.code, found.out, fleet.asked) == (2, "", [])


def test_a_private_key_never_leaves(fleet: Fleet, hostler: Runner, key: Path) -> None:
    private = key.with_suffix("")
    found = hostler("vm", "create", "web-1", "--image", "demo", "--ssh-key", str(private))
    assert (found.code, fleet.asked) == (2, [])
    assert not set(private.read_text().splitlines()[1:-1]) & set(found.err.split())


def test_create_tells_its_steps(fleet: Fleet, hostler: Runner) -> None:
    """L-G10: each step is narrated, in order, and then what became of the VM."""
    fleet.states = [*WALK, vm()]
    fleet.answers["POST", "/v1/vms"] = (201, step(None))
    found = hostler("vm", "create", "web-1", "--image", "demo")
    assert (found.code, found.out) == (0, "web-1 is ready, running, 127.0.0.1\n")
    assert found.err.splitlines() == [*(f"web-1: {WORDS[kind]}" for kind in CREATE), "web-1: ready"]


def test_the_fetch_tells_how_far_it_is() -> None:
    """A host's own words come without the step's; they belong to the step that was named last."""
    steps = Steps(CREATE)
    assert steps.see(step(WORDS[StepKind.FETCH_IMAGE])).done == 1
    stand = steps.see(step("120 of 300 MiB"))
    assert (stand.done, stand.text) == (1, "fetching the image: 120 of 300 MiB")
    assert steps.see(step(f"{WORDS[StepKind.BOOT]}: attempt 1")).text == "starting the guest: attempt 1"
    assert steps.see(step("waiting: the host is silent")).done == 4
    assert steps.see(step(WORDS[StepKind.PREPARE])).done == 0, "a new attempt begins anew"
    assert steps.see(vm()).done == len(CREATE)


def test_a_failed_create_is_1_with_its_reason(fleet: Fleet, hostler: Runner) -> None:
    """L-C6."""
    fleet.states = [WALK[0], vm(phase="failed", power_state=None, last_error="the digest does not match")]
    fleet.answers["POST", "/v1/vms"] = (201, step(None))
    found = hostler("vm", "create", "web-1", "--image", "demo")
    assert found.code == 1
    assert "error: web-1 failed: the digest does not match" in found.err


def test_create_goes_on_while_the_api_is_away(fleet: Fleet, hostler: Runner) -> None:
    fleet.states = [WALK[0], (503, problem(503, "Postgres is away")), WALK[4], vm()]
    fleet.answers["POST", "/v1/vms"] = (201, step(None))
    assert hostler("vm", "create", "web-1", "--image", "demo").code == 0


def test_a_wait_that_is_over_is_4(fleet: Fleet, hostler: Runner) -> None:
    fleet.states = [step("fetching the image")]
    found = hostler("vm", "wait", "web-1", "--timeout", "1s", "--json")
    assert (found.code, found.out) == (4, "")
    assert "fetching the image" in json.loads(found.err)["detail"]


def test_a_vm_that_vanishes_while_waited_for_is_1(fleet: Fleet, hostler: Runner) -> None:
    fleet.listed = [step(None)]
    fleet.states = [step(None), (410, problem(410, "gone"))]
    assert hostler("vm", "wait", "web-1").code == 1


def test_ctrl_c_leaves_and_the_work_goes_on(fleet: Fleet, command: list[str]) -> None:
    fleet.states = [step("fetching the image")]
    fleet.answers["POST", "/v1/vms"] = (201, step(None))
    looked = threading.Event()
    fleet.on_get = looked.set
    process = subprocess.Popen(
        [*command, "vm", "create", "web-1", "--image", "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert looked.wait(30)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, b"")
    assert b"the work goes on. `hostler vm wait web-1`" in err
    assert b"Traceback" not in err
    assert {each.method for each in fleet.asked} == {"POST", "GET"}


def test_a_bar_on_a_terminal(fleet: Fleet, command: list[str]) -> None:
    """A real terminal gets a bar; control characters of others do not reach it."""
    fleet.states = [*WALK[:1], *[step("\x1b[31m7 of 9 MiB")] * 4, *WALK[4:], vm()]
    fleet.answers["POST", "/v1/vms"] = (201, WALK[1])
    controller, terminal = os.openpty()
    process = subprocess.Popen(
        [*command, "vm", "create", "web-1", "--image", "demo"],
        stdout=subprocess.PIPE,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"},
    )
    os.close(terminal)
    drawn = b""
    while True:
        try:
            chunk = os.read(controller, 65536)
        except OSError:
            break
        if not chunk:
            break
        drawn += chunk
    os.close(controller)
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, b"web-1 is ready, running, 127.0.0.1\n")
    seen = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", drawn).decode()
    assert "━" in seen
    assert r"preparing the host: \x1b[31m7 of 9 MiB" in seen
    assert b"\x1b[31m7" not in drawn


@pytest.mark.parametrize(
    ("words", "method", "path", "body"),
    [
        (("start",), "PATCH", "", {"power_state": "running"}),
        (("stop",), "PATCH", "", {"power_state": "stopped"}),
        (("pause",), "PATCH", "", {"power_state": "paused"}),
        (("resume",), "PATCH", "", {"power_state": "running"}),
        (("resize", "--disk", "30"), "PATCH", "", {"disk_gib": 30}),
        (("restart",), "POST", "/restart", None),
        (("retry",), "POST", "/retry", None),
        (("undelete",), "POST", "/undelete", None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_verbs(
    fleet: Fleet, hostler: Runner, words: tuple[str, ...], method: str, path: str, body: dict[str, object] | None
) -> None:
    fleet.answers[method, f"/v1/vms/{VM_ID}{path}"] = (200, vm(settled=False))
    found = hostler("vm", words[0], "web-1", *words[1:])
    assert (found.code, found.out) == (0, "web-1 is ready, running, 127.0.0.1\n")
    asked = fleet.asked[1]
    assert (asked.method, asked.path, asked.body) == (method, f"/v1/vms/{VM_ID}{path}", body)


def test_a_verb_that_did_not_reach_its_aim_is_1(fleet: Fleet, hostler: Runner) -> None:
    fleet.states = [vm(power_state="running", desired_power_state="stopped", last_error="it does not stop")]
    found = hostler("vm", "stop", "web-1")
    assert found.code == 1
    assert "it does not stop" in found.err


def test_rm_keeps_it_for_its_grace(fleet: Fleet, hostler: Runner) -> None:
    """L-R2: the answer says when it will be destroyed."""
    quarantine = {"kind": "tombstone", "since": "2026-01-01T00:00:00Z", "destroy_at": "2999-01-01T00:00:00Z"}
    fleet.states = [vm(phase="quarantined", power_state="stopped", quarantine=quarantine)]
    found = hostler("vm", "rm", VM_ID, "--grace", "60s")
    assert found.code == 0
    assert re.search(r"web-1 is quarantined, destroyed \S+ \S+ \(in \d+d\)", found.out)
    asked = fleet.asked[1]
    assert (asked.method, asked.query) == ("DELETE", {"grace": "60s"})


@pytest.mark.parametrize(
    ("word", "query"), [(("--now",), {"now": "true"}), (("--grace", "0s"), {"grace": "0s"})], ids=str
)
def test_rm_at_once_waits_until_it_is_gone(
    fleet: Fleet, hostler: Runner, word: tuple[str, ...], query: dict[str, str]
) -> None:
    fleet.listed = [vm()]
    fleet.states = [vm(phase="quarantined"), vm(phase="destroying", settled=False), (410, problem(410, "gone"))]
    found = hostler("vm", "rm", "web-1", *word)
    assert (found.code, found.out) == (0, "web-1 is gone\n")
    assert fleet.asked[1].query == query


def test_image_add(fleet: Fleet, hostler: Runner) -> None:
    """D-1."""
    fleet.answers["POST", "/v1/images"] = (201, {"id": "i", "name": "demo"})
    digest = "b" * 64
    words = ("--kernel-url", "https://images.test/k", "--kernel-sha256", digest, "--command-line", "root=/dev/vda")
    found = hostler("image", "add", "demo", "--url", "https://images.test/r", "--sha256", "a" * 64, *words)
    assert (found.code, found.out) == (0, "image demo is known (i)\n")
    assert fleet.asked[0].body == {
        "name": "demo",
        "rootfs": {"url": "https://images.test/r", "sha256": "a" * 64},
        "kernel": {"url": "https://images.test/k", "sha256": digest},
        "command_line": "root=/dev/vda",
    }
    assert hostler("image", "add", "demo", "--url", "u", "--sha256", "s", "--initrd-url", "x").code == 2


def test_a_wait_tells_why_nothing_goes_on() -> None:
    """Between two attempts the last error stands, and when the next one begins."""
    waiting = vm(phase="creating", settled=False, status_detail=None, last_error="no memory")
    stand = Steps(CREATE).see(waiting | {"due_at": "2026-01-01T00:00:00+00:00"})
    assert stand.text.startswith("no memory; tried again at ")


@pytest.mark.parametrize(("typed", "meant"), [("delete", "rm"), ("list", "ls")])
def test_other_words_for_a_verb_are_taken(typed: str, meant: str, hostler: Runner) -> None:
    """Somebody who types `delete` must not be led to `undelete`."""
    asked = hostler("vm", typed, "--help")
    assert asked.code == 0
    assert asked.out == hostler("vm", meant, "--help").out


def test_protection_is_asked_for_and_taken_back(fleet: Fleet, hostler: Runner) -> None:
    """L-R9."""
    for verb, value in (("protect", True), ("unprotect", False)):
        assert hostler("vm", verb, "web-1", "--no-wait").code == 0
        assert fleet.asked[-1].body == {"termination_protection": value}
    assert hostler("vm", "create", "web-2", "--image", "demo", "--protect", "--no-wait").code == 0
    assert fleet.asked[-1].body["termination_protection"] is True


def test_a_rebuild_names_another_image_or_brings_the_old_disk_back(fleet: Fleet, hostler: Runner) -> None:
    """L-V10."""
    url = ("--image-url", "https://images.test/root.qcow2", "--sha256", "a" * 64)
    file = {"url": "https://images.test/root.qcow2", "sha256": "a" * 64}
    for words, body in (
        ((), {}),
        (("--image", "other", "--discard"), {"discard": True, "image": "other"}),
        (url, {"image": file}),
        (("--undo",), {"undo": True}),
    ):
        assert hostler("vm", "rebuild", "web-1", *words, "--no-wait").code == 0
        assert (fleet.asked[-1].method, fleet.asked[-1].path) == ("POST", f"/v1/vms/{VM_ID}/rebuild")
        assert fleet.asked[-1].body == body
    for words in (("--undo", "--image", "other"), ("--undo", "--discard"), ("--sha256", "a" * 64)):
        assert hostler("vm", "rebuild", "web-1", *words).code == 2


def test_a_resize_sends_what_was_given(fleet: Fleet, hostler: Runner) -> None:
    """L-V8."""
    assert hostler("vm", "resize", "web-1", "--cpu", "1.5", "--memory", "2G", "--disk", "20", "--no-wait").code == 0
    assert fleet.asked[-1].body == {"cpu_millicores": 1500, "memory_mib": 2048, "disk_gib": 20}
    assert hostler("vm", "resize", "web-1").code == 2
