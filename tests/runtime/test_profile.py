"""A profile of Temporal's own client configuration says where Temporal is, for every process of the control plane."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.errors import Permanent
from runtime.converter import data_converter
from runtime.profile import connect_options
from runtime.settings import Settings
from runtime.temporal import connect

SECRET = "temporal-api-key"


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PROFILE", "CONFIG_FILE", "ADDRESS", "NAMESPACE"):
        monkeypatch.delenv(f"TEMPORAL_{name}", raising=False)


def write(folder: Path, text: str) -> Path:
    file = folder / "temporal.toml"
    file.write_text(text)
    return file


async def test_a_profile_says_where_temporal_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, temporal_address: str, temporal_namespace: str
) -> None:
    """It wins over address and namespace; Temporal's own variables name it as well."""
    text = f'[profile.fleet]\naddress = "{temporal_address}"\nnamespace = "{temporal_namespace}"\n'
    file = write(tmp_path, text)
    monkeypatch.setenv("TEMPORAL_PROFILE", "fleet")
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(file))
    client = await connect(Settings(temporal_address="127.0.0.1:1"), data_converter(None))
    assert client.namespace == temporal_namespace
    monkeypatch.setenv("HOSTLER_TEMPORAL_PROFILE", "other")
    with pytest.raises(Permanent, match="other"):
        connect_options(Settings())


def test_without_a_profile_the_settings_say_it(tmp_path: Path) -> None:
    file = write(tmp_path, '[profile.default]\naddress = "elsewhere:7233"\n')
    found = connect_options(Settings(temporal_address="a:1", temporal_namespace="n", temporal_config_file=file))
    assert found == {"target_host": "a:1", "namespace": "n"}


def test_a_profile_brings_its_key_and_certificates(tmp_path: Path) -> None:
    file = write(tmp_path, f'[profile.fleet]\naddress = "a:1"\napi_key = "{SECRET}"\n')
    found = connect_options(Settings(temporal_profile="fleet", temporal_config_file=file))
    assert (found["target_host"], found["api_key"], found["namespace"]) == ("a:1", SECRET, "default")
    assert found["tls"], "a key is never sent in the clear"


@pytest.mark.parametrize("text", ["", f'[profile.fleet]\napi_key = "{SECRET}" x', f'[profile.other]\nk="{SECRET}"'])
def test_a_profile_that_cannot_be_used_is_named_and_nothing_of_its_file(tmp_path: Path, text: str) -> None:
    """S-42: the error's cause would quote the line."""
    file = write(tmp_path, text)
    with pytest.raises(Permanent, match=r"profile 'fleet' cannot be used.*has \[profile\.fleet\]") as refused:
        connect_options(Settings(temporal_profile="fleet", temporal_config_file=file))
    assert SECRET not in refused.value.detail
    assert refused.value.__suppress_context__
