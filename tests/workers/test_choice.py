"""Names and ports of installations side by side: chosen once, never shared."""

import socket
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.capacity import Caps
from model.errors import Conflict, Invalid
from runtime.settings import DEFAULT_GATEWAY_PORT
from workers.choice import Wishes, check_ports, check_subnet, choose_ports, choose_settings, hold_names
from workers.host_place import place_host
from workers.installation import Installation, Ports, check_home, derive_settings, save_installation
from workers.up import choose_caps, with_gateway


@given(st.from_regex(r"[a-z][a-z0-9]{0,13}", fullmatch=True))
def test_every_name_gives_names_that_the_drivers_take(name: str) -> None:
    settings = derive_settings(name)
    names = settings.names()
    assert name in (names.table, names.cgroup)
    assert names.subnet.is_private


@pytest.mark.parametrize("name", ["", "A", "1a", "a-b", "a" * 15, "a/b", "a\nb"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(Invalid):
        derive_settings(name)


def test_a_later_run_keeps_the_first_ones_choice() -> None:
    first = choose_settings(None, Wishes(name="one", subnet="10.99.0.0/24", boot_id_path="/a"))
    assert choose_settings(first, Wishes()) == first
    assert choose_settings(first, Wishes(name="one", boot_id_path="/b")).boot_id_path == "/b"
    for wishes in (Wishes(name="two"), Wishes(subnet="10.98.0.0/24"), Wishes(uid_base=400_000), Wishes(netns="x")):
        with pytest.raises(Conflict, match="was made with"):
            choose_settings(first, wishes)
    with pytest.raises(Conflict, match="DATABASE_URL"):
        choose_settings(first, Wishes(database_url="postgresql://elsewhere"))


def test_secrets_are_not_set_into_environments() -> None:
    """S-42: no secret in a child's environment."""
    assert choose_settings(None, Wishes(environment={"HOSTLER_LOG_LEVEL": "debug"})).environment
    for name in ("HOSTLER_TOKEN", "HOSTLER_DATABASE_URL", "PATH"):
        with pytest.raises(Invalid):
            choose_settings(None, Wishes(environment={name: "x"}))


def test_free_ports_are_remembered() -> None:
    wishes = Wishes(api_port=0, temporal_port=0, ui_port=0, gateway_port=0)
    ports = choose_ports(None, wishes)
    assert len(set(ports.model_dump().values()) - {0}) == 6
    assert ports.gateway != DEFAULT_GATEWAY_PORT
    assert choose_ports(ports, wishes) == ports
    assert choose_ports(ports, Wishes()) == ports
    assert choose_ports(ports, Wishes(api_port=9999)).api == 9999
    with pytest.raises(Invalid, match="same"):
        choose_ports(None, Wishes(api_port=9999, ui_port=9999))


def test_an_installation_of_before_the_gateway_gets_a_free_port_for_it() -> None:
    """S-7: what ran at a port that a new default would take is somebody else's, perhaps; and it is no other wish."""
    older = Ports(api=1, temporal=2, ui=3, temporal_http=4, temporal_metrics=5)
    chosen = choose_ports(older, Wishes())
    assert chosen.gateway not in (0, DEFAULT_GATEWAY_PORT)
    assert with_gateway(older, chosen) == chosen == choose_ports(chosen, Wishes())
    assert with_gateway(chosen, chosen.model_copy(update={"gateway": 7})) == chosen
    assert choose_ports(None, Wishes()).gateway == DEFAULT_GATEWAY_PORT


def test_a_taken_port_is_refused_by_number() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        taken = listener.getsockname()[1]
        ports = choose_ports(None, Wishes(api_port=taken, temporal_port=0, ui_port=0, gateway_port=0))
        with pytest.raises(Conflict, match=f"port {taken} .--api-port. is taken"):
            check_ports(ports)
    check_ports(ports)


def test_a_subnet_with_a_route_is_refused_by_name(tmp_path: Path) -> None:
    routes = tmp_path / "route"
    routes.write_text(
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
        "eth0\t00000000\t010000C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        "one0\t0000540A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
    )
    one = derive_settings("one").model_copy(update={"subnet": IPv4Network("10.84.3.0/24")})
    check_subnet(one, routes)  # by its own bridge
    other = one.model_copy(update={"bridge": "other0"})
    with pytest.raises(Conflict, match=r"10\.84\.3\.0/24 meets the route to 10\.84\.0\.0/16 by one0"):
        check_subnet(other, routes)
    check_subnet(other.model_copy(update={"subnet": IPv4Network("10.85.0.0/24")}), routes)


def test_what_another_installation_holds_is_refused_by_name(tmp_path: Path) -> None:
    registry = tmp_path / "registry"
    one = Installation(tmp_path / "one", derive_settings("one"))
    one.run.mkdir(parents=True)
    save_installation(one)
    hold_names(one.home, one.settings, registry)
    hold_names(one.home, one.settings, registry)
    with pytest.raises(Conflict, match=f"name one: held by the installation in {one.home}"):
        hold_names(tmp_path / "two", one.settings, registry)
    two = derive_settings("two").model_copy(update={"uid_base": one.settings.uid_base + 9_999})
    with pytest.raises(Conflict, match="users from"):
        hold_names(tmp_path / "two", two, registry)
    two = derive_settings("two").model_copy(update={"subnet": one.settings.subnet})
    with pytest.raises(Conflict, match="subnet"):
        hold_names(tmp_path / "two", two, registry)

    one.settings_file.unlink()  # its state directory is gone
    hold_names(tmp_path / "two", one.settings, registry)


def test_several_hosts_share_nothing_on_the_machine() -> None:
    """Hosts on one machine: each has a namespace, a link, a subnet, users and a cgroup that no other one has."""
    several = choose_settings(None, Wishes(name="one", hosts=16, boot_id_path="/boot"))
    places = several.hosts
    assert [place.number for place in places] == list(range(1, 17))
    for what in ("netns", "link", "subnet", "uid_base", "cgroup", "boot_id_path"):
        assert len({getattr(place, what) for place in places}) == 16, what
    users = [number for place in places for number in (place.uid_base, place.uid_base + place.uid_count - 1)]
    assert users == sorted(set(users))
    joints = [place.joint((8460,)) for place in places]
    assert len({joint.link for joint in joints if joint}) == len({joint.table for joint in joints if joint}) == 16
    assert choose_settings(several, Wishes()) == several
    assert choose_settings(several, Wishes(boot_id_path="/other")).hosts[2].boot_id_path == "/other-h3"


def test_hosts_are_added_and_never_taken_away() -> None:
    """A machine that was one host stays that host; the further ones get namespaces of their own."""
    one = choose_settings(None, Wishes(name="one"))
    assert one.hosts == (one,)
    assert one.link is one.netns is None
    three = choose_settings(one, Wishes(hosts=3))
    assert three.link is three.netns is None
    assert [place.netns for place in three.hosts] == [None, "one-h2", "one-h3"]
    assert choose_settings(three, Wishes(hosts=4)).further_hosts[:2] == three.further_hosts
    with pytest.raises(Conflict, match="has 3 hosts"):
        choose_settings(three, Wishes(hosts=2))
    for hosts in (0, 17):
        with pytest.raises(Invalid, match="1 to 16 hosts"):
            choose_settings(None, Wishes(hosts=hosts))
    with pytest.raises(Invalid, match="leave out --netns"):
        choose_settings(None, Wishes(hosts=2, netns="x"))


def test_a_link_of_another_installation_is_refused(tmp_path: Path) -> None:
    """Links between the machine and its hosts lie in the machine's own namespace, so no two may be the same."""
    one = Installation(tmp_path / "one", choose_settings(None, Wishes(name="one", hosts=2)))
    one.run.mkdir(parents=True)
    save_installation(one)
    hold_names(one.home, one.settings, tmp_path / "registry")
    two = choose_settings(None, Wishes(name="two", hosts=2))
    hold_names(tmp_path / "two", two, tmp_path / "registry")
    (beside,) = two.further_hosts
    met = two.model_copy(update={"further_hosts": (beside.model_copy(update={"link": one.settings.link}),)})
    with pytest.raises(Conflict, match=f"link {one.settings.link}: held by"):
        hold_names(tmp_path / "two", met, tmp_path / "registry")


@pytest.mark.parametrize("home", ["/var/lib/a b", "/a,b", "relative", "/a/../b", "/" + "x" * 90])
def test_unusual_state_directories_are_refused(home: str) -> None:
    """S-9: a socket path over the limit must not end in another, open place."""
    with pytest.raises(Invalid):
        check_home(Installation(Path(home), derive_settings("one")))


def test_up_chooses_caps_without_a_question(tmp_path: Path) -> None:
    """H-A5: by the machine's size and by what was set; several hosts on one machine, or simulated guests, have none."""
    one = derive_settings("caps")
    measured = choose_caps(Installation(tmp_path, one))
    assert measured.max_memory_mib
    assert measured.max_disk_gib
    assert measured.max_vcpus is None
    said = one.model_copy(update={"environment": {"HOSTLER_HOST_MAX_MEMORY_MIB": "0", "HOSTLER_HOST_MAX_VCPUS": "3"}})
    expected = Caps(max_vcpus=3, max_disk_gib=measured.max_disk_gib)
    assert choose_caps(Installation(tmp_path, said)) == expected
    told = one.model_copy(update={"environment": {"HOSTLER_HOST_SIMULATED_GUESTS": "beside"}})
    several = one.model_copy(update={"further_hosts": (place_host(one, "caps", 2),)})
    assert choose_caps(Installation(tmp_path, told)) == choose_caps(Installation(tmp_path, several)) == Caps()
