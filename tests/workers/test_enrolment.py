"""A host joins the real API: its files, what is repeated, what another machine may not do (H-E1, H-E2, S-40)."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from drivers.machine import HostIdentity, total_memory_mib
from model.capacity import Caps, describe_caps
from model.credential import new_credential
from model.errors import Conflict, Invalid, Unauthenticated, Unreadable
from model.join import JoinString
from model.report import HostReport
from runtime.settings import HostSettings
from store.database import Pool
from tests.api.conftest import World, make_world, report_of, served
from workers.enrolment import ensure_joined, read_caps, read_join_string, renew_credential
from workers.host import join_fleet, read_arguments
from workers.host_api import HostApi, read_credentials


@pytest.fixture
async def world(pool: Pool, tmp_path: Path) -> AsyncIterator[World]:
    """The API of a fleet without hosts."""
    world = await make_world(pool, tmp_path / "keys")
    async with world.client:
        yield world


def machine(tmp_path: Path, name: str) -> Path:
    path = tmp_path / f"machine-id-{name}"
    path.write_text(f"{name}\n")
    return path


async def invited(world: World, url: str, path: str = "", **body: object) -> JoinString:
    answer = await world.call("POST", f"/v1/hosts{path}", json=body)
    return JoinString.parse(answer.json()["join"]).model_copy(update={"url": url})


async def test_a_host_joins_once(world: World, tmp_path: Path) -> None:
    """H-E1, S-40: 0600; told to join by the same string again it does nothing; another host is refused."""
    home = tmp_path / "host"
    async with served(world.parts) as url:
        join = await invited(world, url, name="h9")
        host_id = await ensure_joined(home, join, machine_id_path=machine(tmp_path, "a"))
        before = (home / "credentials.json").read_bytes()
        assert await ensure_joined(home, join, machine_id_path=machine(tmp_path, "a")) == host_id
        assert (home / "credentials.json").read_bytes() == before
        with pytest.raises(Unauthenticated, match="used already"):
            await ensure_joined(tmp_path / "other", join, machine_id_path=machine(tmp_path, "b"))
        credentials = read_credentials(home / "credentials.json")
        async with HostApi(url, credentials.credential.get_secret_value()) as api:
            answer = await api.report(read_report(machine_id="a"))
    assert answer.acknowledged == 1
    assert (credentials.host_id, credentials.sealing_key_bytes) == (host_id, world.parts.keys.host_key(host_id))
    for name in ("credentials.json", "join.json"):
        assert stat.S_IMODE((home / name).stat().st_mode) == 0o600
    assert json.loads((home / "join.json").read_text())["credential"] is None


async def test_a_host_takes_caps_when_it_joins_and_says_so(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """H-A5: what its machine's size proposes, beside what was said; kept for later starts; none is a choice."""
    caplog.set_level("INFO")
    machine_id_path = machine(tmp_path, "a")
    memory = total_memory_mib()
    assert memory is not None
    left = memory - max(1024, memory // 20)
    wishes = {
        "measured": ({}, Caps(max_memory_mib=left, max_disk_gib=disk_cap(tmp_path))),
        "said": ({"max_vcpus": 2, "max_disk_gib": 0}, Caps(max_vcpus=2, max_memory_mib=left)),
        "none": (read_arguments(["--no-caps"])[1], Caps()),
        "simulated": ({"simulated_guests": "only"}, Caps()),
    }
    async with served(world.parts) as url:
        for name, (said, caps) in wishes.items():
            settings = HostSettings(machine_id_path=machine_id_path, **said)
            await join_fleet(tmp_path / name, await invited(world, url, name=name), settings)
            assert read_caps(tmp_path / name) == caps
            assert f"its VMs may take in all: {describe_caps(caps)} (" in caplog.messages[-1]
    joined = (tmp_path / "measured" / "join.json").read_bytes()
    assert json.loads(joined)["credential"] is None
    assert read_caps(tmp_path / "never joined") == Caps()


def disk_cap(path: Path) -> int:
    return shutil.disk_usage(path).total * 9 // 10 >> 30


def test_caps_are_said_on_the_command_line_or_none_are(capsys: pytest.CaptureFixture[str]) -> None:
    """H-S8, H-A3 to H-A5."""
    assert read_arguments(["--join", "-", "--max-vcpus", "4", "--max-memory=2048", "--max-disk=10"]) == (
        "-",
        {"max_vcpus": 4, "max_memory_mib": 2048, "max_disk_gib": 10},
    )
    assert read_arguments(["--no-disk-overcommit"]) == (None, {"disk_overcommit": False})
    assert HostSettings(**read_arguments(["--no-caps"])[1]).caps_over(Caps(max_vcpus=1)) == Caps()
    with pytest.raises(SystemExit):
        read_arguments(["--no-caps", "--max-vcpus", "4"])
    assert "say one of them" in capsys.readouterr().err


async def test_a_host_that_died_before_the_answer_joins_by_the_same_string(world: World, tmp_path: Path) -> None:
    """H-E1: the token was traded, the answer lost: the same trade is made again, not a second one."""
    home = tmp_path / "host"
    async with served(world.parts) as url:
        join = await invited(world, url, name="h9")
        host_id = await ensure_joined(home, join, machine_id_path=machine(tmp_path, "a"))
        credential = read_credentials(home / "credentials.json").credential.get_secret_value()
        (home / "credentials.json").unlink()
        begun = json.loads((home / "join.json").read_text()) | {"credential": credential}
        (home / "join.json").write_text(json.dumps(begun))
        assert await ensure_joined(home, join, machine_id_path=machine(tmp_path, "a")) == host_id
    assert read_credentials(home / "credentials.json").credential.get_secret_value() == credential


async def test_another_machine_takes_the_place_only_when_told(world: World, tmp_path: Path) -> None:
    """H-E2: a copied state directory does not start until `host replace`, which ends the former's credential."""
    home, a, b = tmp_path / "host", machine(tmp_path, "a"), machine(tmp_path, "b")
    async with served(world.parts) as url:
        host_id = await ensure_joined(home, await invited(world, url, name="h9"), machine_id_path=a)
        old = read_credentials(home / "credentials.json")
        told = {"fleet_id": old.fleet_id, "host_id": host_id}
        first = HostIdentity.open(home, **told, machine_id_path=a)
        with pytest.raises(Conflict, match=f"hostler host replace {host_id}"):
            HostIdentity.open(home, **told, machine_id_path=b)
        replace = await invited(world, url, f"/{host_id}/replace")
        assert await ensure_joined(home, replace, machine_id_path=b) == host_id
        second = HostIdentity.open(home, **told, machine_id_path=b)
        assert (second.instance_id, second.machine_id) == (first.instance_id, "b")
        with pytest.raises(Conflict):
            HostIdentity.open(home, **told, machine_id_path=a)
    assert await world.parts.hosts.by_credential(b"x") is None
    answer = await world.as_host(old.credential.get_secret_value(), "GET", "/v1/host/errands?wait_seconds=0")
    assert answer.status_code == 401


async def test_a_state_directory_joins_no_other_host(world: World, tmp_path: Path) -> None:
    """H-E2: the refusal leaves the token good for the host that it is for."""
    home, a = tmp_path / "host", machine(tmp_path, "a")
    async with served(world.parts) as url:
        host_id = await ensure_joined(home, await invited(world, url, name="h9"), machine_id_path=a)
        fleet_id = read_credentials(home / "credentials.json").fleet_id
        HostIdentity.open(home, fleet_id=fleet_id, host_id=host_id, machine_id_path=a)
        other = await invited(world, url, name="h10")
        with pytest.raises(Conflict, match="belongs to host"):
            await ensure_joined(home, other, machine_id_path=a)
        assert await ensure_joined(tmp_path / "empty", other, machine_id_path=machine(tmp_path, "b"))


async def test_a_credential_is_renewed(world: World, tmp_path: Path) -> None:
    """S-40: the next one is in place before the former one ends."""
    home = tmp_path / "host"
    async with served(world.parts) as url:
        await ensure_joined(home, await invited(world, url, name="h9"), machine_id_path=machine(tmp_path, "a"))
        old = read_credentials(home / "credentials.json").credential.get_secret_value()
        async with HostApi(url, old) as api:
            await renew_credential(home, api)
            assert (await api.report(read_report(machine_id="a"))).acknowledged == 1
    new = read_credentials(home / "credentials.json").credential.get_secret_value()
    assert new != old
    assert (await world.as_host(old, "GET", "/v1/host/errands?wait_seconds=0")).status_code == 401


def test_a_join_file_that_others_read_is_refused(tmp_path: Path) -> None:
    """S-40, S-42."""
    path = tmp_path / "join"
    path.write_text("http://127.0.0.1:1#x")
    path.chmod(0o644)
    with pytest.raises(Invalid, match="0600"):
        read_join_string(str(path))


async def test_a_spoilt_join_file_says_what_to_do(tmp_path: Path) -> None:
    """L-G8: no guess is made of what it held."""
    home = tmp_path / "host"
    home.mkdir(mode=0o700)
    (home / "join.json").write_text("{")
    with pytest.raises(Unreadable, match="join"):
        await ensure_joined(home, JoinString(url="http://127.0.0.1:1", token=new_credential("hsj")[0]))


def read_report(**changed: object) -> HostReport:
    return HostReport.model_validate(report_of(1, **changed))
