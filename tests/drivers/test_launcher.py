"""One way to start a program as another user: what it gets, what it does not, and what its starter may rely on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from drivers.confine import (
    Confinement,
    await_end,
    is_alive,
    launch_detached,
    python_binds,
    read_boot_id,
    run_confined,
    signal_process,
    start_confined,
)
from drivers.processes import find_start_time
from model.errors import StepFailed
from model.process import ProcessRecord

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may start programs as other users")

UID = 213_000 + os.getpid() % 7000
SHELL = "/bin/sh"


def shell(script: str, **more) -> Confinement:
    return Confinement((SHELL, "-c", script), uid=UID, gid=UID, **more)


async def say(script: str, **more) -> str:
    finished = await run_confined(shell(script, **more), timeout_seconds=10)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.decode()


async def test_the_program_has_no_privilege_and_no_way_to_one():
    """S-11: another uid, no groups, no capability, an empty bounding set, no_new_privs, no core, an own session."""
    status = dict(line.split(":", 1) for line in (await say("cat /proc/self/status")).splitlines())
    assert status["Uid"].split() == [str(UID)] * 4
    assert status["Gid"].split() == [str(UID)] * 4
    assert status["Groups"].split() == []
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert status["NoNewPrivs"].strip() == "1"
    assert (await say("ulimit -c; ulimit -H -c")).split() == ["0", "0"]
    shell_pid, session = (await say("echo $$; cut -d' ' -f6 /proc/$$/stat")).split()
    assert shell_pid == session


async def test_the_supplementary_groups_are_exactly_those_listed():
    assert (await say("grep Groups /proc/self/status", groups=(UID + 1, UID + 2))).split()[1:] == [
        str(UID + 1),
        str(UID + 2),
    ]


async def test_the_environment_is_exactly_what_was_given(monkeypatch):
    """S-42: nothing of the worker's environment reaches a child."""
    monkeypatch.setenv("CANARY", "secret")
    assert await say("tr '\\0' '\\n' < /proc/self/environ", environment={"A": "1"}) == "A=1\n"


async def test_only_listed_descriptors_are_inherited(tmp_path):
    """S-11: the list of descriptors is exact, whatever the starter had open and inheritable."""
    with (tmp_path / "leak").open("wb") as leak, (tmp_path / "given").open("w+b") as given:
        os.set_inheritable(leak.fileno(), True)
        found = await say(
            f"for f in /proc/$$/fd/*; do echo $f; done; echo x >&7; readlink /proc/$$/fd/7; {SHELL} -c :",
            descriptors={7: given.fileno()},
        )
        given.seek(0)
        assert given.read() == b"x\n"
    numbers = sorted(int(Path(line).name) for line in found.splitlines() if line.startswith("/proc"))
    # the shell's own reading of the folder is closed by the time that it prints
    assert [n for n in numbers if n in (0, 1, 2, 7)] == [0, 1, 2, 7]
    assert len(numbers) <= 5
    assert found.splitlines()[-1] == str(tmp_path / "given")


async def test_descriptors_may_swap_their_numbers(tmp_path):
    one, two = (tmp_path / "one").open("wb"), (tmp_path / "two").open("wb")
    with one, two:
        found = await say(
            f"readlink /proc/$$/fd/{two.fileno()}; readlink /proc/$$/fd/{one.fileno()}",
            descriptors={one.fileno(): two.fileno(), two.fileno(): one.fileno()},
        )
    assert found.split() == [str(tmp_path / "one"), str(tmp_path / "two")]


async def test_limits_and_signals_are_set():
    found = await say(
        "ulimit -n; ulimit -H -n; grep -E 'SigIgn|SigBlk' /proc/self/status", limits={"RLIMIT_NOFILE": 50}
    )
    words = found.split()
    assert words[:2] == ["50", "50"]
    assert int(words[words.index("SigBlk:") + 1], 16) == 0
    # Signals 32 to 34 are the C library's own: no program may set them, so none can put them back either.
    own = 0b111 << 31
    assert int(words[words.index("SigIgn:") + 1], 16) & ~own == 1 << (signal.SIGXFSZ - 1)


async def test_unreachable_paths_are_bound_and_nothing_beside_them(tmp_path):
    """A path below a closed folder is reached at the same place; what lies beside it is not there."""
    closed = tmp_path / "closed"
    for name in ("wanted/deep", "wanted2", "beside"):
        (closed / name).mkdir(parents=True)
        (closed / name / "file").write_text(name)
    (closed / "single").write_text("single")
    for path in (closed, *closed.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for folder in tmp_path.parents:
        assert folder.exists()
    closed.chmod(0o700)
    assert (await run_confined(shell(f"cat {closed}/wanted2/file"), timeout_seconds=10)).returncode != 0
    found = await say(
        f"cat {closed}/wanted/deep/file {closed}/wanted2/file {closed}/single; echo; ls {closed}",
        bind=(closed / "wanted", closed / "wanted2", closed / "wanted" / "deep", closed / "single"),
    )
    assert found.split() == ["wanted/deepwanted2single", "single", "wanted", "wanted2"]
    assert (closed / "beside").exists(), "the worker's own view is unchanged"


async def test_this_installation_runs_as_another_user():
    finished = await run_confined(
        Confinement(
            (sys.executable, "-c", "import pydantic, model.errors, os; print(os.getuid())"),
            uid=UID,
            gid=UID,
            environment={"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONDONTWRITEBYTECODE": "1"},
            bind=python_binds(),
        ),
        timeout_seconds=30,
    )
    assert finished.stdout.split() == [str(UID).encode()], finished.stderr


async def test_what_prevents_a_start_is_said_without_a_path():
    with pytest.raises(StepFailed, match=r"^nothing-here could not be started \(become: No such file"):
        await run_confined(Confinement(("/x/nothing-here",), uid=UID, gid=UID), timeout_seconds=5)
    with pytest.raises(StepFailed, match=r"sh could not be started \(join cgroups: No such file"):
        await run_confined(shell(":", cgroup_files=(Path("/x/secret/cgroup.procs"),)), timeout_seconds=5)
    with pytest.raises(StepFailed, match="not installed"):
        await run_confined(Confinement(("no-such-program",), uid=UID, gid=UID), timeout_seconds=5)


async def test_input_output_and_status_are_passed():
    c = shell("cat; echo oops >&2; exit 3")
    data = b"x" * 300_000
    finished = await run_confined(c, input=data, timeout_seconds=10)
    assert (finished.returncode, finished.stdout, finished.stderr) == (3, data, b"oops\n")
    with pytest.raises(StepFailed, match="said more than 1000 bytes"):
        await run_confined(c, input=data, timeout_seconds=10, output_limit_bytes=1000)


async def test_a_timeout_or_cancel_kills_and_waits(tmp_path):
    marker = f"{UID}{time.monotonic_ns()}"
    script = f"sleep 1000.{marker} & wait"

    def remaining() -> list[str]:
        return [path.parent.name for path in Path("/proc").glob("[0-9]*/cmdline") if marker.encode() in read(path)]

    with pytest.raises(StepFailed, match=r"did not end within 0\.2 s"):
        await run_confined(shell(script), timeout_seconds=0.2)
    await until(lambda: not remaining())
    running = asyncio.create_task(run_confined(shell(script), timeout_seconds=60))
    await until(remaining)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: not remaining())


async def test_a_child_is_started_with_its_streams():
    process = await start_confined(
        shell("read x; echo got $x"), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert (await process.communicate(b"it\n"))[0] == b"got it\n"
    assert process.returncode == 0


async def test_a_detached_program_is_nobodys_child_and_is_recorded_first(tmp_path):
    """L-G3: the record is durable before the program begins; it is found alive by pid and start time."""
    began = tmp_path / "began"
    with began.open("wb") as file:
        seen: list[ProcessRecord] = []

        async def record(p: ProcessRecord) -> None:
            await asyncio.sleep(0.05)
            assert began.stat().st_size == 0
            assert is_alive(p, read_boot_id())
            seen.append(p)

        p = await launch_detached(shell("echo yes >&5; exec sleep 1000", descriptors={5: file.fileno()}), record=record)
    assert seen == [p]
    assert p.uid == UID
    await until(lambda: began.read_text() == "yes\n")
    status = Path(f"/proc/{p.pid}/status").read_text()
    assert f"\nPPid:\t{os.getpid()}\n" not in status
    assert not is_alive(p, "another boot")
    assert not is_alive(p.model_copy(update={"start_time": p.start_time - 1}), read_boot_id())
    signal_process(p.model_copy(update={"start_time": p.start_time - 1}), signal.SIGKILL)
    assert await await_end(p, 0.1) is False
    signal_process(p, signal.SIGKILL)
    assert await await_end(p, 5) is True
    assert not is_alive(p, read_boot_id())
    assert await await_end(p, 5) is True
    signal_process(p, signal.SIGKILL)


async def test_a_program_whose_record_fails_never_begins(tmp_path):
    """L-G3: if the write fails, the call is not made, and nothing is left waiting."""
    with (tmp_path / "began").open("wb") as file:
        seen: list[ProcessRecord] = []

        async def record(p: ProcessRecord) -> None:
            seen.append(p)
            raise OSError("disk full")

        with pytest.raises(OSError, match="disk full"):
            await launch_detached(shell("echo yes >&5", descriptors={5: file.fileno()}), record=record)
    assert await await_end(seen[0], 5)
    assert (tmp_path / "began").read_bytes() == b""


async def test_a_starter_killed_before_the_record_leaves_nothing(tmp_path):
    """L-G3: the held back child ends by itself when its starter dies."""
    code = f"""
import asyncio, json, os, signal
from drivers.confine import Confinement, launch_detached
async def record(p):
    print(p.model_dump_json(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(launch_detached(Confinement(("/bin/sleep", "1000"), uid={UID}, gid={UID}), record=record))
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    out, _ = await process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert await await_end(ProcessRecord(**json.loads(out)), 5)


async def test_a_detached_program_that_cannot_begin_is_an_error():
    with pytest.raises(StepFailed, match="could not be started"):
        await launch_detached(Confinement(("/x/none",), uid=UID, gid=UID), record=ignore)


async def test_the_launcher_is_quick():
    started = time.monotonic()
    for _ in range(10):
        await run_confined(Confinement(("/bin/true",), uid=UID, gid=UID), timeout_seconds=10)
    assert (time.monotonic() - started) / 10 < 0.25, "30 ms alone; the rest is for a busy machine"


async def ignore(p: ProcessRecord) -> None:
    del p


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


async def until(condition, seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the kernel has no event for it
            await asyncio.sleep(0.02)


BEGINNER = f"""
import asyncio
from drivers.confine import Confinement, launch_detached, start_confined
async def record(process):
    print(process.pid, flush=True)
    await asyncio.sleep(SLOW)
async def main():
    order = Confinement(("/bin/sleep", "1000"), uid={UID}, gid={UID})
    process = await (launch_detached(order, record=record) if DETACHED else start_confined(order))
    print(process.pid, flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""


@pytest.mark.parametrize("stopped", [False, True], ids=["runs", "stopped"])
@pytest.mark.parametrize("held_back", [False, True], ids=["child", "held-back"])
async def test_what_a_killed_worker_had_in_hand_ends_with_it(stopped, held_back):
    """L-G2: neither a child, nor one that waits for its record, acts after the worker's successor has begun."""
    code = BEGINNER.replace("DETACHED", str(held_back)).replace("SLOW", "1000")
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, cwd=Path(__file__).parents[2], stdout=asyncio.subprocess.PIPE
    )
    pid = int(await asyncio.wait_for(worker.stdout.readline(), 30))
    child = ProcessRecord(pid=pid, start_time=find_start_time(pid), boot_id=read_boot_id(), uid=UID)
    if stopped:
        signal_process(child, signal.SIGSTOP)
    worker.kill()
    await worker.wait()
    if held_back:
        signal_process(child, signal.SIGCONT)
    assert await await_end(child, 10)


async def test_a_detached_program_outlives_the_worker_that_began_it():
    """H-E5."""
    code = BEGINNER.replace("DETACHED", "True").replace("SLOW", "0")
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, cwd=Path(__file__).parents[2], stdout=asyncio.subprocess.PIPE
    )
    for _ in range(2):
        pid = int(await asyncio.wait_for(worker.stdout.readline(), 30))
    child = ProcessRecord(pid=pid, start_time=find_start_time(pid), boot_id=read_boot_id(), uid=UID)
    worker.kill()
    await worker.wait()
    assert not await await_end(child, 0.2)
    signal_process(child, signal.SIGKILL)
    assert await await_end(child, 10)


async def test_a_program_whose_worker_is_gone_before_it_begins_does_not_begin(tmp_path, monkeypatch):
    """L-G2: the launcher was stopped while its worker died, so that no signal came."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    finished = await run_confined(
        Confinement(("/usr/bin/touch", str(tmp_path / "made")), uid=0, gid=0), timeout_seconds=10
    )
    assert finished.returncode == 125
    assert not (tmp_path / "made").exists()
