"""Settings come from the environment; the command line may import them cheaply."""

from __future__ import annotations

import subprocess
import sys
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from model.errors import Invalid
from runtime.settings import HostSettings, Settings


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTLER_HOME", "/srv/fleet")
    monkeypatch.setenv("HOSTLER_TOKEN", "secret-token")
    monkeypatch.setenv("DATABASE_URL", "postgresql://user:word@h/d")
    settings = Settings()
    assert str(settings.master_key_file) == "/srv/fleet/keys/master.key"
    assert settings.url == "http://127.0.0.1:8460"
    assert settings.database_url is not None
    assert settings.database_url.get_secret_value() == "postgresql://user:word@h/d"
    assert "word" not in repr(settings)
    assert "secret-token" not in repr(settings)


def test_our_own_database_url_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://other")
    monkeypatch.setenv("HOSTLER_DATABASE_URL", "postgresql://own")
    database_url = Settings().database_url
    assert database_url is not None
    assert database_url.get_secret_value() == "postgresql://own"


def test_an_installation_has_its_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTLER_HOST_BRIDGE", "fleet1")
    monkeypatch.setenv("HOSTLER_HOST_SUBNET", "10.9.0.0/24")
    names = HostSettings().names
    assert (names.bridge, names.subnet) == ("fleet1", IPv4Network("10.9.0.0/24"))
    monkeypatch.setenv("HOSTLER_HOST_BRIDGE", "Not A Name")
    with pytest.raises(Invalid):
        _ = HostSettings().names


def test_settings_load_nothing_heavy() -> None:
    """The command line imports them: no Temporal, no Postgres, no HTTP server."""
    code = (
        "import sys, runtime.settings;"
        "print([m for m in ('temporalio', 'asyncpg', 'fastapi', 'cryptography', 'pyroute2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_database_url_comes_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """S-42: its password is in no environment; a URL that is said outright wins."""
    for name in ("HOSTLER_DATABASE_URL", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "database_url"
    file.write_text("postgresql://user:word@h/d\n")
    monkeypatch.setenv("HOSTLER_DATABASE_URL_FILE", str(file))
    found = Settings().database_url
    assert found is not None
    assert found.get_secret_value() == "postgresql://user:word@h/d"
    assert "word" not in repr(Settings())
    monkeypatch.setenv("HOSTLER_DATABASE_URL", "postgresql://own")
    found = Settings().database_url
    assert found is not None
    assert found.get_secret_value() == "postgresql://own"
    file.unlink()
    monkeypatch.delenv("HOSTLER_DATABASE_URL")
    with pytest.raises(ValueError, match="cannot be read"):
        Settings()
