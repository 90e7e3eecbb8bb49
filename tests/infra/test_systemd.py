"""The units of infra/systemd: systemd takes them, none ends a guest; where there is no systemd it is said."""

from __future__ import annotations

import configparser
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from workers import systemd
from workers.choice import Wishes, choose_settings
from workers.installation import Installation, derive_settings

PROJECT = Path(__file__).resolve().parents[2]
UNITS = sorted((PROJECT / "infra" / "systemd").glob("*.service"))
PROGRAM = "/usr/local/bin/hostler"


def install(folder: Path) -> list[Path]:
    """Write the units as they would be on a machine whose `hostler` is this environment's."""
    installed: list[Path] = []
    for unit in UNITS:
        text = unit.read_text().replace(PROGRAM, str(Path(sys.executable).with_name("hostler")))
        if unit.name == "hostler-up.service":
            text = systemd.render(Installation(Path("/var/lib/hostler"), derive_settings("hostler")))
        installed.append(folder / unit.name)
        installed[-1].write_text(text)
    return installed


def read(unit: Path) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=False, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(unit.read_text())
    return parser["Service"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
def test_systemd_takes_every_unit(tmp_path: Path) -> None:
    """A key that it does not know, a section that is misspelt or a program that is not there is refused."""
    units = install(tmp_path)
    assert len(units) == 5
    for unit in units:
        done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), unit.name
    spoilt = tmp_path / "spoilt.service"
    spoilt.write_text(units[0].read_text().replace("ExecStart=", "ExecStart=/nowhere"))
    assert subprocess.run(["systemd-analyze", "verify", str(spoilt)], capture_output=True).returncode != 0


def test_no_unit_takes_guests_with_it(tmp_path: Path) -> None:
    """H-E5, H-A5: only the worker's own process is ended; it is the last that the kernel kills for memory."""
    units = {unit.stem: read(unit) for unit in install(tmp_path)}
    for name in ("hostler-host", "hostler-up"):
        assert units[name]["KillMode"] == "process"
    assert int(units["hostler-host"]["OOMScoreAdjust"]) < 0
    for name in ("hostler-api", "hostler-control", "hostler-gateway"):
        assert units[name]["User"] == "hostler", "S-2"
        assert units[name]["EnvironmentFile"] == "/etc/hostler/control.env", "S-42: no secret in a unit"


def test_a_unit_says_all_that_its_supervisor_is_told(tmp_path: Path) -> None:
    unit = tmp_path / "one.service"
    installation = Installation(Path("/srv/fleet"), derive_settings("two"))
    unit.write_text(systemd.render(installation))
    assert "@" not in unit.read_text().partition("[Unit]")[2]
    assert read(unit)["ExecStart"] == f"{sys.executable} -P -m workers.supervisor --home /srv/fleet"
    assert systemd.unit_name(installation) == "hostler-up-two.service"


def test_an_installation_remembers_that_systemd_keeps_it() -> None:
    chosen = choose_settings(None, Wishes(name="one", service=True))
    assert chosen.service
    assert choose_settings(chosen, Wishes()).service
    assert not choose_settings(None, Wishes(name="one")).service


@pytest.mark.skipif(os.geteuid() != 0, reason="`hostler up` takes root")
@pytest.mark.skipif(systemd.RUNNING.is_dir(), reason="systemd runs on this machine: a service would be installed")
def test_where_systemd_does_not_run_nothing_is_begun(tmp_path: Path) -> None:
    """It says what to do instead, before it makes anything."""
    home = tmp_path / "home"
    words = ("-P", "-m", "workers.up", "--home", str(home), "--name", "nosystemd", "--service")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PROJECT)}
    done = subprocess.run([sys.executable, *words], env=environment, cwd="/", capture_output=True, text=True)
    assert done.returncode == 2, done.stdout
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["event"] == "error"
    assert "systemd does not run on this machine" in json.dumps(said)
    assert "run `hostler up` without --service" in json.dumps(said)
    assert not home.exists()


def test_systemd_is_found_where_it_runs(tmp_path: Path) -> None:
    """sd_booted(3): the folder is there exactly where it is the init."""
    assert systemd.find_missing(tmp_path / "none")
    if shutil.which("systemctl"):
        assert systemd.find_missing(tmp_path) == ()
