"""Where a host's orders come from: the gateway, under the credential that is good now (S-7, S-40)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from temporalio.client import Client

from model.errors import Permanent
from runtime.converter import data_converter
from runtime.gateway import connect_gateway
from runtime.keys import SealingKey
from runtime.seal import Seal
from workers.host_api import Credentials


class Orders:
    """Connect to the gateway as this host, again and again. ca_file: whose certificates it may show (PEM)."""

    def __init__(self, credentials: Credentials, ca_file: Path | None = None) -> None:
        self._credentials = credentials
        self._credential = credentials.credential.get_secret_value()
        self._ca_file = ca_file
        self._client: Client | None = None
        self._converter = data_converter(_seal(credentials))

    async def connect(self) -> Client:
        """Return a connection. Raises Unavailable while the gateway does not answer, Permanent for a wrong setting."""
        self._client = await connect_gateway(
            self._credentials.temporal_address,
            namespace=self._credentials.namespace,
            credential=self._credential,
            converter=self._converter,
            identity=f"host/{self._credentials.host_id}",
            ca=None if self._ca_file is None else await asyncio.to_thread(_read, self._ca_file),
        )
        return self._client

    def use(self, credential: str) -> None:
        """Ask with another credential from the next call on."""
        self._credential = credential
        if self._client is not None:
            self._client.api_key = credential


def _seal(credentials: Credentials) -> Seal:
    key = SealingKey(credentials.key_version, credentials.sealing_key_bytes)

    def key_for(host_id: str, version: int | None) -> SealingKey | None:
        return key if host_id == credentials.host_id and version in (None, key.version) else None

    return Seal(side="host", fleet_id=credentials.fleet_id, key_for=key_for)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Permanent("the file of HOSTLER_HOST_GATEWAY_CA_FILE cannot be read: correct the path") from error
