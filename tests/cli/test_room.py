"""How much of a host is held, as people read it (H-P7, H-S7)."""

from __future__ import annotations

from typing import Any

from cli.host import facts
from cli.room import describe_room, short_room
from tests.cli.conftest import Runner
from tests.cli.fleet import HOST_ID, Fleet


def host(live: int = 0, leaving: int = 0, cap: int | None = None, size: int | None = None) -> dict[str, Any]:
    held = {"live": {"memory_mib": live}, "leaving": {"memory_mib": leaving}, "leaving_vms": bool(leaving)}
    return {"held": held, "caps": {"max_memory_mib": cap}, "capacity": {"memory_mib_total": size}}


def memory(*numbers: int | None) -> str:
    return dict(describe_room(host(*numbers)))["memory"]


def test_a_bar_tells_the_living_from_the_leaving() -> None:
    """H-P7."""
    assert memory(1024, 512, 4096) == ("[#####~~~............] 1536 of 4096 MiB held, 512 MiB of it being torn down")
    assert memory(0, 0, 4096) == "[....................] 0 of 4096 MiB held"


def test_from_nine_tenths_on_it_warns_and_what_is_over_is_no_negative_room() -> None:
    """H-P7: a normal state, `over by`."""
    assert "nearly full" not in memory(3686, 0, 4096)
    assert memory(3687, 0, 4096).endswith("3687 of 4096 MiB held, nearly full")
    assert memory(6144, 0, 4096) == "[####################] 6144 of 4096 MiB held, over by 2048"
    assert short_room(host(6144, 0, 4096), "memory_mib") == "[########] 6144 of 4096 MiB, over by 2048"
    assert short_room(host(3072, 1024, 4096), "memory_mib") == "[######~~] 4096 of 4096 MiB, nearly full"
    assert short_room(host(0, 64, 4096), "memory_mib") == "[~.......] 64 of 4096 MiB"


def test_without_a_cap_the_machines_size_and_unknown_is_not_zero() -> None:
    """H-P7, H-S7, H-A3."""
    assert memory(1024, 0, None, 2048).endswith("] 1024 of 2048 MiB held, no cap")
    assert memory(9999, 0, None, 2048).endswith("] 9999 of 2048 MiB held, no cap")
    assert memory(1024, 0, None, None) == "1024 MiB held of an unknown size"
    assert short_room(host(1024), "memory_mib") == "unknown"
    assert dict(describe_room({}))["cpu"] == "unknown"


def test_processors_are_read_as_vcpus_and_disk_of_the_filesystem() -> None:
    """H-S8."""
    told = {"held": {"live": {"cpu_millicores": 3500, "disk_gib": 1}}, "caps": {"max_vcpus": 4}}
    told["capacity"] = {"storage_bytes_total": 10 << 30}
    assert short_room(told, "cpu_millicores") == "[#######.] 3.5 of 4 vCPUs"
    assert short_room(told, "disk_gib") == "[#.......] 1 of 10 GiB"


def test_hosts_are_listed_with_their_room_drawn(fleet: Fleet, hostler: Runner) -> None:
    """H-P7: of one that has not said its size nothing is drawn, and nothing is 0."""
    held = host(1024, 512, 2048) | {"id": HOST_ID, "name": "host-1", "status": "ready"}
    fleet.hosts = [held, {"id": "other", "name": "host-2", "status": "joining"}]
    out = hostler("host", "ls").out
    assert "[####~~..] 1536 of 2048 MiB" in " ".join(out.split())
    assert "unknown" in out.splitlines()[-1]
    assert " 0 " not in out.splitlines()[-1]


def test_what_is_being_torn_down_is_counted_and_until_when() -> None:
    """H-P3, H-P7."""
    for count, words in ((1, "1 VM until 20"), (3, "3 VMs, the last until 20")):
        held = {"leaving_vms": count, "leaving_until": "2030-01-01T00:00:00Z"}
        assert words in str(dict(facts({"held": held}))["being torn down"])


def test_a_host_is_cordoned_by_name(fleet: Fleet, hostler: Runner) -> None:
    """H-E2: and the command says what the host is now."""
    for verb, status in (("cordon", "cordoned"), ("uncordon", "ready")):
        fleet.answers["POST", f"/v1/hosts/host-1/{verb}"] = (200, {"id": HOST_ID, "name": "host-1", "status": status})
        found = hostler("host", verb, "host-1")
        assert (found.code, found.err.strip()) == (0, f"host-1 is {status}")


def test_a_host_is_labelled(fleet: Fleet, hostler: Runner) -> None:
    """H-P1."""
    shown = {"id": HOST_ID, "name": "host-1", "labels": {"disk": "nvme", "room": "2"}}
    fleet.answers["PATCH", "/v1/hosts/host-1"] = (200, shown)
    found = hostler("host", "label", "host-1", "room=2", "disk=nvme")
    assert (found.code, found.err.strip()) == (0, "host-1 is labelled disk=nvme, room=2")
    assert fleet.asked[-1].body == {"labels": shown["labels"]}
    assert hostler("host", "label", "host-1", "room").code == 2


def test_a_host_is_given_up_only_by_its_name_typed_again(fleet: Fleet, hostler: Runner) -> None:
    """L-R10: without it the command shows what would be released, and asks nothing of the API but to look."""
    shown = {"id": HOST_ID, "name": "host-1", "status": "ready", "last_report_at": None}
    fleet.answers["GET", "/v1/hosts/host-1"] = (200, shown)
    gone = {**shown, "status": "forgotten", "forgotten_at": "2026-01-01T00:00:00+00:00"}
    fleet.answers["POST", f"/v1/hosts/{HOST_ID}/forget"] = (200, gone)
    found = hostler("host", "forget", "host-1")
    assert found.code == 0
    assert "web-1" in found.out
    assert "nothing was done: `hostler host forget host-1 --confirm host-1`" in found.err
    assert {asked.method for asked in fleet.asked} == {"GET"}
    found = hostler("host", "forget", "host-1", "--confirm", "host-1")
    assert (found.code, fleet.asked[-1].body) == (0, {"name": "host-1"})
    assert found.err.startswith("host-1 is given up since 2026-01-01")


def test_maintenance_says_until_when(fleet: Fleet, hostler: Runner) -> None:
    """H-E2: and a silence that is expected is not shown as one."""
    until = "2030-01-01T00:00:00+00:00"
    shown = {"id": HOST_ID, "name": "host-1", "status": "maintenance", "maintenance_until": until, "silent": True}
    fleet.answers["POST", "/v1/hosts/host-1/maintenance"] = (200, shown)
    found = hostler("host", "maintenance", "host-1", "--for", "2h")
    assert (found.code, fleet.asked[-1].body) == (0, {"seconds": 7200})
    assert found.err.startswith("host-1 is maintenance until 20")
    fleet.hosts = [shown]
    assert "silent" not in hostler("host", "ls").out


def test_what_a_host_joins_with_is_alone_on_standard_output(fleet: Fleet, hostler: Runner) -> None:
    """H-E1: it goes into a file or a pipe; the sentence around it does not."""
    joined = {"host_id": HOST_ID, "name": "host-1", "join": "http://h#hsj_x", "join_expires_at": "2030-01-01T00:00:00Z"}
    for words, path in ((("add",), "/v1/hosts"), (("replace",), "/v1/hosts/host-1/replace")):
        fleet.answers["POST", path] = (201, joined)
        found = hostler("host", *words, "host-1", "--expires-in", "60")
        assert (found.code, found.out) == (0, "http://h#hsj_x\n")
        assert "hostler worker host --join" in found.err
        assert fleet.asked[-1].body["join_expires_in_seconds"] == 60


def test_a_hosts_credential_is_ended_by_name(fleet: Fleet, hostler: Runner) -> None:
    """S-40: and the command says how the host comes back."""
    fleet.answers["POST", "/v1/hosts/host-1/revoke"] = (200, {"id": HOST_ID, "name": "host-1"})
    found = hostler("host", "revoke", "host-1")
    assert (found.code, "hostler host replace host-1" in found.err) == (0, True)
