"""`up`, `down` and `status`: processes that tell their steps, shown and turned into exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli import demo, installation
from cli.demo import ensure_key
from cli.failures import Unsuccessful
from tests.cli.conftest import Runner
from tests.cli.fleet import Fleet, step, vm

UP = {
    "event": "up",
    "docs_url": "http://127.0.0.1:1/docs",
    "ui_url": "http://127.0.0.1:2",
    "logs": "/logs",
    "image": None,
    "host": {
        "id": "h",
        "name": "host-1",
        "hypervisors": [{"name": "qemu", "available": True, "why": "no /dev/kvm", "accelerator": "tcg"}],
    },
}


@pytest.fixture
def speaker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose `workers` package speaks what the test writes there, in place of ours."""
    package = tmp_path / "spoken" / "workers"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.setattr("cli.processes.child_environment", lambda: {**os.environ, "PYTHONPATH": str(package.parent)})
    return package


def speak(speaker: Path, module: str, *said: object, code: int = 0) -> None:
    lines = ""
    for each in said:
        text = each if isinstance(each, str) else json.dumps(each)
        lines += f"print({text!r}, flush=True)\n"
    record = f"import os, sys\nopen({str(speaker / 'argv')!r}, 'w').write('\\0'.join(sys.argv[1:]))\n"
    record += f"open({str(speaker / 'token')!r}, 'w').write(os.environ.get('HOSTLER_TOKEN', ''))\n"
    (speaker / f"{module}.py").write_text(record + lines + f"sys.exit({code})\n")


def a_step(name: str, state: str, detail: str | None = None, **more: object) -> dict[str, object]:
    return {"event": "step", "name": name, "state": state, "detail": detail, **more}


def test_up_shows_steps_and_tells_what_to_do_next(
    speaker: Path, hostler: Runner, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSTLER_TOKEN", "hst_of_another_fleet")
    speak(speaker, "up", a_step("api", "starting"), a_step("api", "ready", "\x1b[31mpid 7"), "no json", UP)
    found = hostler("up", "--name", "side", "--api-port", "0", "--set", "HOSTLER_LOG_LEVEL=debug")
    assert found.code == 0
    assert found.err.splitlines()[:2] == ["api: starting", r"api: ready (\x1b[31mpid 7)"]
    for text in ("http://127.0.0.1:1/docs", "http://127.0.0.1:2", "TCG (qemu): no /dev/kvm", "export PATH="):
        assert text in found.out
    argv = (speaker / "argv").read_text().split("\0")
    assert argv == ["--home", str(home), "--name=side", "--api-port=0", "--set=HOSTLER_LOG_LEVEL=debug"]
    assert (speaker / "token").read_text() == ""


def test_up_as_json_is_one_document(speaker: Path, hostler: Runner) -> None:
    speak(speaker, "up", a_step("api", "ready"), UP)
    found = hostler("up", "--json")
    assert (found.code, found.err, json.loads(found.out)) == (0, "", {**UP, "demo": None})


def test_up_tells_what_is_missing(speaker: Path, hostler: Runner) -> None:
    error = {"event": "error", "detail": "`hostler up` cannot begin", "hints": ["root is needed", "qemu is missing"]}
    speak(speaker, "up", error, code=2)
    found = hostler("up")
    assert (found.code, found.out) == (1, "")
    assert found.err.splitlines() == ["error: `hostler up` cannot begin", "  root is needed", "  qemu is missing"]


def test_a_failed_service_shows_the_end_of_its_log(speaker: Path, hostler: Runner) -> None:
    failed = a_step("api", "failed", "it ended", log=["line 1", "\x1b[2Jline 2"])
    speak(speaker, "up", failed, {"event": "error", "detail": "api does not come up", "hints": []}, code=1)
    found = hostler("up")
    assert found.code == 1
    assert found.err.splitlines()[1:3] == ["  | line 1", r"  | \x1b[2Jline 2"]


def test_a_process_that_breaks_is_told(speaker: Path, hostler: Runner) -> None:
    (speaker / "up.py").write_text("raise SystemError('broken inside')")
    found = hostler("up")
    assert found.code == 1
    assert "broken inside" in found.err
    assert "workers.up ended with 1" in found.err


def test_steps_on_a_terminal(tmp_path: Path, command: list[str]) -> None:
    """The list is drawn in place; text of others is data there too."""
    script = (
        "from cli.events import StepTable\n"
        "with StepTable() as table:\n"
        "    table.show({'name': 'api', 'state': 'starting', 'detail': None})\n"
        "    table.show({'name': 'api', 'state': 'ready', 'detail': '\\x1b[31m[bold]x'})\n"
    )
    controller, terminal = os.openpty()
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": root, "COLUMNS": "100"}
    process = subprocess.Popen([sys.executable, "-c", script], stderr=terminal, env=environment)
    os.close(terminal)
    drawn = b""
    with open(controller, "rb", buffering=0) as file:  # noqa: PTH123
        try:
            while chunk := file.read(65536):
                drawn += chunk
        except OSError:
            pass
    assert process.wait(30) == 0
    assert rb"\x1b[31m[bold]x" in drawn
    assert b"\x1b[31m[bold]" not in drawn


def test_down(speaker: Path, hostler: Runner) -> None:
    speak(speaker, "down", a_step("api", "stopped"), {"event": "down", "stopped": ["api"], "guests": 2})
    found = hostler("down", "--vms")
    assert (found.code, found.out) == (0, "stopped api; guests stopped: 2\n")
    assert (speaker / "argv").read_text().split("\0")[-1] == "--vms"
    speak(speaker, "down", {"event": "down", "stopped": []})
    assert hostler("down").out == "nothing was running\n"


STATUS = {
    "installed": True,
    "home": "/h",
    "url": "http://127.0.0.1:1",
    "ui_url": "http://127.0.0.1:2",
    "supervisor": {"up": True, "why": None},
    "services": [
        {"name": "api", "state": "failed", "up": False, "pid": None, "restarts": 3, "detail": "\x1b[2J", "log": ["why"]}
    ],
    "host": {"hypervisors": [], "why": "this host is not enrolled yet"},
    "not_held": {"S-2": "no root"},
}
WRONG = {
    "hypervisors": [],
    "why": "x",
    "conditions": [{"condition": "disk_short", "what": "1.0 GiB of 20.0 GiB free: y", "advice": "make room"}],
    "overdue": ["web-1", "web-\x1b[2J"],
    "standstill": "the host h1 has seen pass 9",
}


def test_status(speaker: Path, hostler: Runner) -> None:
    speak(speaker, "status", STATUS, code=1)
    found = hostler("status")
    assert found.code == 1
    assert r"\x1b[2J" in found.out
    assert "this host is not enrolled yet" in found.out
    assert "api | why" in found.err
    assert "S-2 is not held: no root" in found.err


def test_status_tells_what_is_wrong(speaker: Path, hostler: Runner) -> None:
    """L-G13, D-12, H-R1: conditions of the host, the VMs that are overdue, and that a restore has to be settled."""
    speak(speaker, "status", {**STATUS, "host": WRONG})
    found = hostler("status")
    assert "1.0 GiB of 20.0 GiB free: y; make room" in found.out
    assert r"web-1, web-\x1b[2J" in found.out
    assert "the host h1 has seen pass 9; see `hostler restore`" in found.out


def test_status_without_an_installation_is_3(speaker: Path, hostler: Runner) -> None:
    speak(speaker, "status", {"installed": False, "why": "run `hostler up`"}, code=3)
    found = hostler("status", "--json")
    assert (found.code, json.loads(found.out)["installed"]) == (3, False)
    speak(speaker, "status", {"installed": None, "why": "root is needed to look"}, code=2)
    assert hostler("status").code == 1


def test_ctrl_c_ends_the_process_too(tmp_path: Path) -> None:
    """Ctrl-C reaches both; nothing is left behind, and no traceback is shown."""
    package = tmp_path / "spoken" / "workers"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "up.py").write_text(
        'import os, signal\nprint(\'{"event": "step", "name": "x", "state": "starting"}\', flush=True)\n'
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\nsignal.pause()\n"
    )
    script = (
        "import cli.processes as p, os, sys\n"
        f"p.child_environment = lambda: {{**os.environ, 'PYTHONPATH': {str(package.parent)!r}}}\n"
        "from cli.main import run\nsys.exit(run(['up']))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    process = subprocess.Popen(
        [sys.executable, "-c", script], stderr=subprocess.PIPE, env=environment, start_new_session=True
    )
    deadline = time.monotonic() + 30
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < deadline
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Traceback" not in err
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_up_makes_the_demo_with_a_key_of_its_own(
    speaker: Path, hostler: Runner, fleet: Fleet, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks the installation that it brought up, with that one's token, whatever the environment names."""
    monkeypatch.setattr(demo, "answers", lambda *_: True)
    monkeypatch.setenv("HOSTLER_URL", "http://127.0.0.1:1")
    (home / "token").write_text("hst_of_the_file")
    (home / "token").chmod(0o600)
    fleet.listed = []
    fleet.states = [vm(name="demo")]
    fleet.answers["POST", "/v1/vms"] = (201, step("preparing the host", name="demo"))
    speak(speaker, "up", {**UP, "url": fleet.url, "image": "demo"})
    found = hostler("up")
    assert found.code == 0, found.err
    assert "vm ssh demo" in found.out
    asked = next(each for each in fleet.asked if each.method == "POST")
    assert asked.headers["authorization"] == "Bearer hst_of_the_file"
    public = (home / "ssh" / "id_ed25519.pub").read_text().strip()
    assert asked.body == {"name": "demo", "image": "demo", "ssh_authorized_keys": [public]}
    assert {path.name: path.stat().st_mode & 0o777 for path in (home / "ssh").iterdir()}["id_ed25519"] == 0o600
    assert (home / "ssh").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "state",
    [vm(name="demo", desired_power_state="stopped", power_state="stopped"), vm(name="demo", phase="failed")],
    ids=["stopped", "failed"],
)
def test_up_leaves_a_demo_that_is_there_as_it_is(
    speaker: Path, hostler: Runner, fleet: Fleet, state: dict[str, object]
) -> None:
    fleet.states = [state]
    speak(speaker, "up", {**UP, "url": fleet.url, "image": "demo"})
    assert hostler("up").code == 0
    assert {each.method for each in fleet.asked} == {"GET"}


def test_the_key_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "ssh" / "id_ed25519"
    first = ensure_key(path)
    assert first.startswith("ssh-ed25519 ")
    assert ensure_key(path) == first
    path.with_suffix(".pub").unlink()
    assert ensure_key(path).split()[:2] == first.split()[:2]
    assert sorted(each.name for each in path.parent.iterdir()) == ["id_ed25519", "id_ed25519.pub"]


def test_a_damaged_key_is_told(tmp_path: Path) -> None:
    path = tmp_path / "ssh" / "id_ed25519"
    path.parent.mkdir()
    path.write_text("no key")
    with pytest.raises(Unsuccessful):
        ensure_key(path)


def test_under_sudo_the_login_line_has_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", "1000")
    assert installation.command_prefix(Path("/var/lib/hostler")).startswith("sudo /")
    monkeypatch.delenv("SUDO_UID")
    assert installation.command_prefix(Path("/elsewhere")) == "hostler"


@pytest.mark.parametrize(
    ("words", "module"),
    [(("api",), "workers.api"), (("worker", "control"), "workers.control"), (("worker", "host"), "workers.host")],
)
def test_processes_are_become(
    hostler: Runner, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], module: str
) -> None:
    became: list[list[str]] = []

    def execve(_path: str, words: list[str], _environment: dict[str, str]) -> None:
        became.append(words)

    monkeypatch.setattr(os, "execve", execve)
    assert hostler(*words, "--", "--verbose").code == 0
    assert became == [[sys.executable, "-P", "-m", module, "--verbose"]]
