"""What the fleets of these tests are made of."""

from __future__ import annotations

from pathlib import Path

import pytest

Given = tuple[str, str, str, Path, pytest.MonkeyPatch]


@pytest.fixture
def given(
    database_url: str, temporal_address: str, temporal_namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Given:
    """All that `running_fleet` needs but for its host."""
    return database_url, temporal_address, temporal_namespace, tmp_path, monkeypatch
