"""What may be asked of hosts, of the fleet and of who may ask: the bodies, checked (A-8)."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    Field,
    Strict,
)

from api.bodies import Body, Labels, SshKey
from model.ids import Digest, HostId, Name
from model.restore import Choice
from model.text import clean_text


class ChangeHostBody(Body):
    """What of a host an operator may change: its labels, all of them at once."""

    labels: Labels


class HostKeyBody(Body):
    """The public line of the host key that a host made for one of its VMs."""

    public_key: SshKey


class FreezeBody(Body):
    """What is held: everything destructive, or with `creates` only new VMs; of one host, or the whole fleet."""

    host: HostId | None = None
    creates: bool = False


class FloorBody(Body):
    """The least release of a host worker that may act on VMs; null: any."""

    min_worker_version: Annotated[str, Field(pattern=r"^[0-9]{1,9}\.[0-9]{1,9}(\.[0-9]{1,9})?$")] | None


class RollBody(Body):
    """Which VMs are restarted, those that are wanted running, with these labels, on this host; and how many at once."""

    labels: Labels = {}
    host: HostId | None = None
    batch_size: Annotated[int, Field(ge=1, le=1000)] = 1
    most_failures: Annotated[int, Field(ge=0, le=1000, description="It pauses when more have failed")] = 0


class DrainBody(Body):
    """What becomes of the VMs of a host that is drained: they are stopped, or left where they are."""

    policy: Literal["stop", "leave", "move"] = "stop"


class ForgetBody(Body):
    """The name of the host that is given up, so that no other one is by mistake."""

    name: Name


class AdoptBody(Body):
    """Whose a VM is that its host holds without a row, and what it is called if not as its host's record says."""

    project: Name = Field(default=None, description="The one that its host's record says")  # type: ignore[assignment]
    name: Name = Field(default=None)  # type: ignore[assignment]


class AdoptVolumeBody(Body):
    """What a volume is to be called from now on."""

    name: Name


class MaintenanceBody(Body):
    """For how long a host's silence is expected, in whole seconds."""

    seconds: int = Field(ge=60, le=30 * 86_400)


class SettleBody(Body):
    """What is to become of a VM that a restored database does not know as its host does."""

    choice: Choice
    host: HostId = Field(default=None, description="Where several hosts hold it")  # type: ignore[assignment]
    project: Name = Field(default=None, description="Of one that is adopted")  # type: ignore[assignment]
    name: Name = Field(default=None, description="Of one that is adopted under another")  # type: ignore[assignment]


class ReplaceHostBody(Body):
    """For how long the join string can be used, in whole seconds."""

    join_expires_in_seconds: int = Field(default=3600, ge=60, le=7 * 86_400)

    @property
    def join_expires_in(self) -> timedelta:
        return timedelta(seconds=self.join_expires_in_seconds)


class NewHostBody(ReplaceHostBody):
    """A host to add. The answer holds what it joins with, once."""

    name: Name


class NewTokenBody(Body):
    """A token to make: what for, as what, for which project (null: all that the maker's reaches), and for how long."""

    name: Name
    role: Literal["admin", "operator", "viewer"]
    project: Name | None = None
    expires_in_seconds: int = Field(default=90 * 86_400, ge=60, le=730 * 86_400)

    @property
    def expires_in(self) -> timedelta:
        return timedelta(seconds=self.expires_in_seconds)


Limit = Annotated[int, Strict(), Field(ge=0, le=1 << 30)] | None


class LimitsBody(Body):
    """How much a project may have in all. null: no limit; what is left out stays."""

    max_vms: Limit = None
    max_vcpus: Limit = None
    max_memory_mib: Limit = None
    max_disk_gib: Limit = None
    max_images: Limit = None


class JoinBody(Body):
    """A host that joins: the SHA-256 of the random part of the credential that it made, and which machine it is.

    `host_id` is that of its state directory, if it has one already.
    """

    credential_digest: Digest
    machine_id: Annotated[str, Field(min_length=1, max_length=128), AfterValidator(clean_text)]
    host_id: HostId | None = None


class RenewBody(Body):
    """The SHA-256 of the random part of a host's next credential."""

    credential_digest: Digest
