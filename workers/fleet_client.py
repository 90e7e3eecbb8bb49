"""What `hostler up` asks of its own API: enrol this host, wait for its first report, register the demo image."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from pathlib import Path
from typing import Any, cast

import httpx2

from drivers.confine import Confinement, python_binds, run_confined
from drivers.durable import write_durably
from model.capacity import Caps
from model.errors import StepFailed, Unavailable
from model.join import JoinString
from workers import users
from workers.enrolment import change_credentials, ensure_joined
from workers.host_place import HostPlace
from workers.installation import Installation
from workers.service_hostler import environment, module_arguments
from workers.users import need_user

Json = dict[str, Any]
_TOKEN_SECONDS = 60.0
_HOST_NAMES = 9


class FleetClient:
    """Speak to the API of an installation on this machine with its admin token."""

    def __init__(self, installation: Installation, token: str) -> None:
        self._installation = installation
        self._client = httpx2.AsyncClient(
            base_url=installation.url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=15.0,
            trust_env=False,  # a proxy of the caller's environment must never see the token
        )

    async def __aenter__(self) -> FleetClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def call(self, method: str, path: str, body: Json | None = None) -> tuple[int, Json]:
        """Make one call; return status and document. Raises Unavailable when the API does not answer."""
        try:
            answer = await self._client.request(method, path, json=body)
        except httpx2.HTTPError as error:
            raise Unavailable("the API did not answer: see its log") from error
        try:
            document: object = answer.json()
        except ValueError:
            document = {}
        return answer.status_code, cast("Json", document) if isinstance(document, dict) else {}

    async def ensure_enrolled(self, place: HostPlace, caps: Caps) -> str:
        """Add a host of this machine, and join with these caps by what was answered, unless it did; return its id."""
        if self._installation.host_credentials(place).exists():
            return await asyncio.to_thread(read_host_id, self._installation, place)
        # A name that is taken is another host's, or that of a state directory which was lost.
        status, answer = 409, {}
        for name in host_names(place.number):
            status, answer = await self.call("POST", "/v1/hosts", {"name": name})
            if status != 409:
                break
        check("add this host", status, answer)
        join = JoinString.parse(str(answer["join"])).model_copy(update={"url": self._installation.url})
        home = self._installation.host_folder(place)
        return await ensure_joined(home, join, gateway_url=self._installation.gateway_url, caps=caps)

    async def find_host(self, host_id: str) -> Json:
        """Read this host as the fleet shows it."""
        status, host = await self.call("GET", f"/v1/hosts/{host_id}")
        check("read this host", status, host)
        return host

    async def list_overdue(self) -> list[str]:
        """Name VMs whose work should be done by now (L-G13), at most 50."""
        status, found = await self.call("GET", "/v1/vms?overdue=true&limit=50")
        check("list what is overdue", status, found)
        return [str(vm["name"]) for vm in found["items"]]

    async def find_standstill(self) -> str | None:
        """Say why nothing is done with any VM since the database was restored (H-R1); None: it is no such time."""
        status, found = await self.call("GET", "/v1/restore")
        check("ask whether the database was restored", status, found)
        return str(found["why"]) if found["behind"] else None

    async def await_first_report(self, host_id: str, timeout_seconds: float) -> Json:
        """Wait until the fleet has heard of this host."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while not is_heard(host := await self.find_host(host_id)):  # noqa: ASYNC110 - another process' state
                    await asyncio.sleep(0.1)
        except TimeoutError as error:
            raise StepFailed(f"the host worker sent no report within {timeout_seconds:g} s: see its log") from error
        return host

    async def ensure_image(self, image: Json) -> str:
        """Register an image unless it is; return its reference.

        One reference means one set of digests for ever (D-1): a guest that was built anew gets a tag of its own.
        """
        tagged = f"{image['name']}:{image['rootfs']['sha256'][:12]}"
        status, answer = 409, {}
        for reference in (str(image["name"]), tagged):
            status, answer = await self.call("POST", "/v1/images", {**image, "name": reference})
            if status != 409:
                check(f"register image {reference}", status, answer)
                return reference
        check(f"register image {tagged}", status, answer)
        return tagged


def is_heard(host: Json) -> bool:
    """Tell whether the host has reported: it then has an instance, and is not silent."""
    return bool(host.get("instance_id")) and host.get("status") != "joining" and not host.get("silent", False)


def check(wish: str, status: int, answer: Json) -> None:
    """Raise StepFailed with the API's own sentence unless it agreed."""
    if not 200 <= status < 300:
        raise StepFailed(f"could not {wish}: {answer.get('detail', f'the API answered {status}')}")


def host_names(number: int = 1) -> tuple[str, ...]:
    """Make DNS labels of this machine's name for its host of a number: itself for the first, then numbered."""
    label = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().split(".")[0].lower()).strip("-")[:60] or "host"
    own = label if number == 1 else f"{label}-{number}"
    return (own, *(f"{own}-{again}" for again in range(2, _HOST_NAMES + 1)))


def read_host_id(installation: Installation, place: HostPlace) -> str:
    return str(json.loads(installation.host_credentials(place).read_bytes())["host_id"])


def refresh_credentials(installation: Installation, place: HostPlace) -> None:
    """Tell a host worker where API and gateway are now, if it is enrolled: ports may have been chosen anew."""
    try:
        given = cast("Json", json.loads(installation.host_credentials(place).read_bytes()))
    except FileNotFoundError:
        return
    reached = {"api_url": installation.url, "temporal_address": installation.gateway_url}
    if {name: given[name] for name in reached} != reached:
        change_credentials(installation.host_credentials(place), **reached)


async def ensure_token(installation: Installation) -> str:
    """Return the admin token of the command line; make one as `hostler` unless the stored one is good."""
    stored = await asyncio.to_thread(read_token, installation.token)
    if stored is not None:
        async with FleetClient(installation, stored) as fleet:
            status, _ = await fleet.call("GET", "/v1/hosts")
        if status != 401:
            return stored
    token = await make_token(installation)
    await asyncio.to_thread(write_durably, installation.token, token.encode() + b"\n", mode=0o600)
    return token


async def make_token(installation: Installation) -> str:
    user = need_user(users.HOSTLER)
    order = Confinement(
        argv=module_arguments("workers.token"),
        uid=user.uid,
        gid=user.gid,
        environment=environment(installation),
        bind=(*python_binds(), installation.home),
    )
    made = await run_confined(order, timeout_seconds=_TOKEN_SECONDS)
    words = made.stdout.split()
    if made.returncode != 0 or not words or not words[-1].startswith(b"hst_"):
        raise StepFailed(f"could not make the first admin token: workers.token ended with {made.returncode}")
    return words[-1].decode()


def read_token(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except FileNotFoundError:
        return None
