"""The host worker's own calls to the API: reports go out, inputs come in, under the host's credential (S-5, S-6)."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import httpx2
import pydantic

from drivers.formats import CREDENTIALS, parse
from model.base import Frozen, Lenient
from model.certificate import HostCertificate
from model.errors import (
    Conflict,
    HostlerError,
    Invalid,
    NotFound,
    Permanent,
    StepFailed,
    Superseded,
    Unauthenticated,
    Unavailable,
    Unreadable,
)
from model.join import JoinedHost
from model.report import ControlRelease, HostReport, ReportAnswer
from model.sync import SyncSets
from model.text import clean_text
from model.vm import VmInput

Answer = TypeVar("Answer", bound=pydantic.BaseModel)

TIMEOUT_SECONDS = 10.0
INPUT_LIMIT_BYTES = 4 << 20


class Credentials(Frozen):
    """credentials.json, 0600, written at enrolment. `sealing_key`: base64 of 32 bytes (S-3).

    `temporal_address` is where its orders come from, the gateway's (S-7), by the name that the first release knows.
    A file without a number is of format 1, and none is written to one: release 0.1 refuses every field more.
    """

    fleet_id: str
    host_id: str
    credential: pydantic.SecretStr
    sealing_key: pydantic.SecretStr
    key_version: int
    api_url: str
    temporal_address: str
    namespace: str

    @property
    def sealing_key_bytes(self) -> bytes:
        """Return the key itself."""
        return base64.b64decode(self.sealing_key.get_secret_value(), validate=True)


class Errand(Lenient):
    """A question that only this host can answer, such as the end of a VM's console log."""

    id: str
    kind: str
    vm_id: str
    limit_bytes: int


class Errands(Lenient):
    """The questions that are open now."""

    items: tuple[Errand, ...]


def read_credentials(path: Path) -> Credentials:
    """Read what enrolment gave this host; raises Unreadable without telling any of it."""
    try:
        document = parse(CREDENTIALS, path.name, path.read_bytes())
        given = {name: value for name, value in document.items() if name not in ("format", "release")}
        credentials = Credentials.model_validate(given)
        if len(credentials.sealing_key_bytes) != 32:
            raise Unreadable("credentials.json holds a sealing key of another length: enrol this host again")
    except FileNotFoundError as error:
        raise Unreadable("this host is not enrolled yet: join with `hostler worker host --join FILE`") from error
    except (OSError, ValueError) as error:
        raise Unreadable("credentials.json cannot be read: enrol this host again") from error
    return credentials


class HostApi:
    """A client of the API with one host's credential. Raises Unavailable when the API does not answer."""

    def __init__(self, url: str, credential: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        # No proxy of the environment: the host's credential goes to the API alone.
        self._client = httpx2.AsyncClient(
            base_url=url.rstrip("/"),
            headers={"authorization": f"Bearer {credential}"},
            timeout=timeout_seconds,
            trust_env=False,
            follow_redirects=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def join(self, credential_digest: bytes, machine_id: str, host_id: str | None) -> JoinedHost:
        """Trade the join token that this client was made with; raise what the API refuses it with, in its words."""
        body = {"credential_digest": credential_digest.hex(), "machine_id": machine_id, "host_id": host_id}
        return _read(await self._call("POST", "/v1/host/join", json.dumps(body), own_words=True), JoinedHost)

    async def renew(self, credential_digest: bytes) -> None:
        """Have this host's next credential taken."""
        await self._call("POST", "/v1/host/credential", json.dumps({"credential_digest": credential_digest.hex()}))

    def use(self, credential: str) -> None:
        """Call with another credential from now on."""
        self._client.headers["authorization"] = f"Bearer {credential}"

    async def report(self, report: HostReport) -> ReportAnswer:
        """Send one report. What has its default goes without saying: a host of idle VMs says it all day."""
        response = await self._call("POST", "/v1/host/report", report.model_dump_json(exclude_defaults=True))
        return _read(response, ReportAnswer)

    async def find_release(self) -> str | None:
        """Ask of which release the control plane is; None: of the first, which cannot tell."""
        try:
            return _read(await self._call("GET", "/v1/host/release", None), ControlRelease).version
        except NotFound:
            return None

    async def fetch_input(self, vm_id: str, digest: str) -> VmInput:
        """Fetch what a VM is to be made of, with exactly this digest (S-5).

        Raises Superseded when the row has another digest by now, or is not this host's any more.
        """
        try:
            response = await self._call("GET", f"/v1/host/vms/{vm_id}/input?digest={digest}", None)
        except NotFound as error:
            raise Superseded("the VM is no longer this host's: the row must be read again") from error
        found = _read(response, VmInput)
        if (found.vm_id, found.digest) != (vm_id, digest):
            raise Superseded("the VM's input is another than the order's: the row must be read again")
        return found

    async def fetch_certificate(self, vm_id: str, public_key: str) -> HostCertificate:
        """Fetch the host certificate for a VM's public key; raises Unavailable while there is none (L-C2).

        Raises Superseded when the VM is not this host's any more, Permanent when the API certified another key.
        """
        try:
            body = json.dumps({"public_key": public_key})
            response = await self._call("POST", f"/v1/host/vms/{vm_id}/certificate", body)
        except NotFound as error:
            raise Superseded("the VM is no longer this host's: the row must be read again") from error
        except Superseded as error:
            raise Permanent(
                "no certificate is signed for this VM's host key, since another one was certified before: look why the "
                "host has another one; to give the VM a new key, delete it and make it again"
            ) from error
        return _read(response, HostCertificate)

    async def fetch_sets(self, revision: int) -> SyncSets:
        """Fetch the complete sets of this host; raises Superseded when they have another revision by now (H-S1)."""
        try:
            response = await self._call("GET", f"/v1/host/sets?revision={revision}", None)
        except Superseded as error:
            raise Superseded("the host's sets have another revision by now: its row must be read again") from error
        return _read(response, SyncSets)

    async def take_errands(self, wait_seconds: float) -> tuple[Errand, ...]:
        """Ask for the questions that only this host can answer; waits for the first one."""
        path = f"/v1/host/errands?wait_seconds={wait_seconds}"
        response = await self._call("GET", path, None, timeout_seconds=wait_seconds + TIMEOUT_SECONDS)
        return _read(response, Errands).items

    async def answer_errand(self, errand_id: str, content: bytes) -> None:
        """Answer one question."""
        await self._call("POST", f"/v1/host/errands/{errand_id}", content)

    async def _call(
        self,
        method: str,
        path: str,
        body: str | bytes | None,
        *,
        timeout_seconds: float | None = None,
        own_words: bool = False,
    ) -> bytes:
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        headers = {"content-type": kind} if body is not None else {}
        timeout = httpx2.USE_CLIENT_DEFAULT if timeout_seconds is None else timeout_seconds
        try:
            async with self._client.stream(method, path, content=body, headers=headers, timeout=timeout) as response:
                data = b""
                async for chunk in response.aiter_bytes():
                    data += chunk
                    if len(data) > INPUT_LIMIT_BYTES:
                        raise StepFailed(f"the API's answer is over {INPUT_LIMIT_BYTES} bytes")
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            raise Unavailable("the API does not answer this host: its step waits for it") from error
        if response.status_code not in (200, 201, 202):
            raise (own_words and _refusal(response.status_code, data)) or _error(response.status_code)
        return data


def _error(status: int) -> HostlerError:
    if status == 404:
        return NotFound("the API knows no such thing for this host")
    if status == 409:
        return Superseded("the VM's input has changed: the row must be read again")
    if status in (401, 403):
        # The operator's matter, not the VM's: no attempt may be used up.
        return Unavailable("the API refuses this host's credential: enrol it again, or look whether it was revoked")
    return Unavailable(f"the API answered this host with status {status}")


def _refusal(status: int, data: bytes) -> HostlerError | None:
    """Return what the API refuses this host with, in its own words; None where it says none."""
    kinds: dict[int, type[HostlerError]] = {401: Unauthenticated, 404: NotFound, 409: Conflict, 422: Invalid}
    try:
        return kinds[status](clean_text(str(json.loads(data)["detail"])))
    except (KeyError, ValueError, TypeError):
        return None


def _read(data: bytes, kind: type[Answer]) -> Answer:
    try:
        return kind.model_validate_json(data)
    except pydantic.ValidationError as error:
        raise Unavailable("the API's answer does not fit: API and host worker may be too far apart") from error
