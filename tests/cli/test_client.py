"""Where the API is, with which token it is called, and how its answers become exit codes."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from cli.failures import Usage
from cli.place import DEFAULT_URL, find_place, home_directory
from runtime import settings
from tests.cli.conftest import TOKEN, Runner
from tests.cli.fleet import VM_ID, Fleet, problem, vm


def test_defaults_are_those_of_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line reads its three settings without importing the others', so both must agree."""
    monkeypatch.delenv("HOSTLER_HOME")
    assert home_directory() == settings.default_home()
    assert settings.DEFAULT_URL == DEFAULT_URL


def test_finds_the_installation_of_this_machine(home: Path) -> None:
    (home / "run").mkdir()
    (home / "run" / "ports.json").write_text('{"api": 18460}')
    (home / "token").write_text("hst_of_the_file\n")
    (home / "token").chmod(0o600)
    place = find_place()
    assert (place.url, place.token) == ("http://127.0.0.1:18460", "hst_of_the_file")
    assert "hst_of" not in repr(place)


def test_environment_goes_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "token").write_text("hst_of_the_file")
    monkeypatch.setenv("HOSTLER_URL", "https://fleet.test")
    monkeypatch.setenv("HOSTLER_TOKEN", "hst_of_the_environment")
    place = find_place()
    assert (place.url, place.token) == ("https://fleet.test", "hst_of_the_environment")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_refuses_a_token_file_that_others_read(home: Path, mode: int) -> None:
    """A-2: the token is stored with mode 0600."""
    (home / "token").write_text("hst_of_the_file")
    (home / "token").chmod(mode)
    with pytest.raises(Usage, match="read by others") as refused:
        find_place()
    assert "hst_" not in str(refused.value)


@pytest.mark.parametrize("text", ["two words", "line\nline", "hst_é", "\x1b[31m"])
def test_refuses_what_is_no_token_without_repeating_it(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("HOSTLER_TOKEN", text)
    with pytest.raises(Usage) as refused:
        find_place()
    assert text not in str(refused.value)


def test_sends_the_token_to_the_api(fleet: Fleet, hostler: Runner) -> None:
    assert hostler("vm", "ls").code == 0
    assert fleet.asked[0].headers["authorization"] == f"Bearer {TOKEN}"


def test_follows_no_redirect(fleet: Fleet, hostler: Runner) -> None:
    """The token never goes to another place than the one that was chosen."""
    fleet.answers["GET", "/v1/vms"] = (307, {})
    found = hostler("vm", "ls")
    assert (found.code, len(fleet.asked)) == (1, 1)
    assert "redirect" in found.err


def test_uses_no_proxy(fleet: Fleet, hostler: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert hostler("vm", "ls").code == 0


def test_nobody_there_is_3(hostler: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    monkeypatch.setenv("HOSTLER_URL", f"http://127.0.0.1:{port}")
    found = hostler("vm", "ls")
    assert (found.code, found.out) == (3, "")
    assert "not reachable" in found.err


@pytest.mark.parametrize("url", ["no url", "http://[", "ftp://127.0.0.1", "http://127.0.0.1:99999"])
def test_a_url_that_is_none_is_3(hostler: Runner, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("HOSTLER_URL", url)
    assert hostler("vm", "ls").code == 3


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b'"x"'])
def test_something_else_at_the_url_is_1(fleet: Fleet, hostler: Runner, body: bytes) -> None:
    fleet.answers["GET", "/v1/vms"] = (200, body)
    found = hostler("vm", "ls")
    assert found.code == 1
    assert "not Hostler's API" in found.err


def test_a_refusal_is_told_whole(fleet: Fleet, hostler: Runner) -> None:
    """A-1: `detail` whole with control characters escaped, and each bad field."""
    detail = "x" * 5000 + "\x1b]8;;http://evil\x07 [bold]end"
    errors = [{"pointer": "/disk_gib", "detail": "too small\n"}, {"pointer": "", "detail": "odd"}]
    fleet.answers["GET", "/v1/vms"] = (409, problem(409, detail, errors=errors))
    found = hostler("vm", "ls")
    assert (found.code, found.out) == (1, "")
    assert "x" * 5000 + "\\x1b]8;;http://evil\\x07 [bold]end\n" in found.err
    assert "/disk_gib: too small\\n\n" in found.err
    assert "the body: odd\n" in found.err
    assert "\x1b" not in found.err


def test_json_refusal_is_the_problem_document(fleet: Fleet, hostler: Runner) -> None:
    document = problem(409, "no", retryable=False)
    fleet.answers["GET", "/v1/vms"] = (409, document)
    found = hostler("vm", "ls", "--json")
    assert (found.code, found.out, json.loads(found.err)) == (1, "", document)


@pytest.mark.parametrize(
    "words",
    [
        ("bogus",),
        ("vm", "bogus"),
        ("vm", "show"),
        ("vm", "ls", "--bogus"),
        ("vm", "rm", "web-1", "--grace", "5"),
        ("vm", "rm", "web-1", "--grace", "5s", "--now"),
        ("vm", "stop", "web-1", "--timeout", "soon"),
        ("vm", "ls", "--limit", "0"),
        ("image", "add", "demo"),
    ],
)
def test_a_wrong_call_is_2_and_asks_nothing(fleet: Fleet, hostler: Runner, words: tuple[str, ...]) -> None:
    found = hostler(*words)
    assert (found.code, found.out, fleet.asked) == (2, "", [])
    assert found.err.startswith("error: ")


def test_a_name_is_resolved(fleet: Fleet, hostler: Runner) -> None:
    assert hostler("vm", "stop", "web-1", "--no-wait").code == 0
    assert [(each.method, each.path) for each in fleet.asked] == [("GET", "/v1/vms"), ("PATCH", f"/v1/vms/{VM_ID}")]


def test_an_id_is_looked_up_as_an_id_first(fleet: Fleet, hostler: Runner) -> None:
    """Another VM may be named like an id; the id wins."""
    fleet.listed = [vm(id="other", name=VM_ID)]
    assert hostler("vm", "stop", VM_ID, "--no-wait").code == 0
    assert fleet.asked[-1].path == f"/v1/vms/{VM_ID}"


def test_an_ambiguous_name_is_refused(fleet: Fleet, hostler: Runner) -> None:
    fleet.listed = [vm(), vm(id="other", project="theirs")]
    found = hostler("vm", "stop", "web-1")
    assert found.code == 1
    assert VM_ID in found.err
    assert "other (project theirs)" in found.err


@pytest.mark.parametrize("name", ["../hosts", "..", "web-1\n", "WEB", "a/b", "a?b", "", "x" * 64, "-x-"])
def test_what_can_be_no_name_never_gets_into_a_path(fleet: Fleet, hostler: Runner, name: str) -> None:
    """S-20: names match whole, in one spelling."""
    found = hostler("vm", "show", "--", name)
    assert (found.code, fleet.asked) == (1, [])


def test_an_unknown_name_is_told(fleet: Fleet, hostler: Runner) -> None:
    found = hostler("vm", "show", "nobody")
    assert found.code == 1
    assert "nobody" in found.err
