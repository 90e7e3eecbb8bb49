"""From a host's record of a VM to its row: asked for, validated as a create is, sealed again (L-R1, H-E5, S-5)."""

from __future__ import annotations

import base64
import hmac
import logging
from typing import Any

import pydantic
from pydantic import SecretStr

from api.bodies import NewImageBody, NewVmBody
from api.making import seal_vm
from api.parts import Parts
from model.adoption import RECORD_LIMIT_BYTES, HostRecord
from model.errors import Conflict, HostlerError, Unavailable
from model.foreign import ForeignVm
from model.ids import Name, mac_address
from model.specification import FILE_ROLES, FileRole, FileSpec, ImageSpec, NewVm, Secrets, VmSpec, redact_url
from model.vm import Image, ImageFile, PowerState, VmInput
from runtime.keys import MasterKeys
from store.adopt import Adopted, Becomes, Terms, adopt_vanished, check_project, not_held, stop_misplaced, take_foreign
from store.audit import Actor
from store.change import Accepted
from store.foreign import list_foreign
from store.image import PUBLIC
from store.vm_create import MAC_DRAWS

_log = logging.getLogger("hostler.adopt")
VANISHED = Actor("hostler")


class _Called(pydantic.BaseModel):
    """A project's or a VM's name, as a host tells it."""

    name: Name


async def take_vanished(parts: Parts, host_id: str, vm_id: str) -> None:
    """Make the row of a VM that vanished, in the operators' project: whose it is a host's word alone does not say.

    What fails is done again with the host's next whole report.
    """
    try:
        accepted = await _take(parts, host_id, vm_id, "vanish", VANISHED, project=None, name=None)
        if accepted is not None:
            parts.poke(accepted.vm_id, accepted.pass_type, host_id)
    except HostlerError as error:
        _log.warning("a VM without a row stays as it is for now: %s", error.detail, extra={"vm": vm_id})


async def adopt(
    parts: Parts, host_id: str, vm_id: str, actor: Actor, *, project: str | None, name: str | None
) -> Accepted:
    """Take a VM over as it is; one that vanished and has its row of that kind by now is brought back (L-R4).

    Raise NotFound for what the host does not hold so, Conflict for what cannot be a row, Unavailable while the host
    does not answer.
    """
    try:
        back = await adopt_vanished(parts.pool, host_id, vm_id, actor, project=project, name=name)
    except Conflict:
        project = project or await _signed_project(parts, host_id, vm_id)
        if project is None:
            raise
        back = await adopt_vanished(parts.pool, host_id, vm_id, actor, project=project, name=name)
    return back or await take_by_hand(parts, host_id, vm_id, "adopt", actor, project=project, name=name)


async def _signed_project(parts: Parts, host_id: str, vm_id: str) -> str | None:
    """Return whose a VM is by a record that the control plane signed; None: by no such one, or its host is away."""
    try:
        told = _parse(vm_id, await parts.errands.ask(host_id, "record", vm_id, RECORD_LIMIT_BYTES))
    except HostlerError:
        return None
    return told.input.project if is_signed(parts.keys, told.input) else None


def is_signed(keys: MasterKeys, given: VmInput) -> bool:
    """Say whether a host's record is what was handed out to it, word for word (S-5)."""
    return hmac.compare_digest(given.signature or "", keys.sign_record(given.signed_bytes()))


async def quarantine(
    parts: Parts, host_id: str, vm_id: str, actor: Actor, *, project: str | None, name: str | None
) -> ForeignVm:
    """Stop a VM and keep it: by a row of its own, or, where its row names another host, without one.

    Return what the host held. Raise as `adopt` does.
    """
    stopped = await stop_misplaced(parts.pool, host_id, vm_id, actor)
    if stopped is not None:
        return stopped
    held = next((vm for vm in await list_foreign(parts.pool, host_id) if vm.vm_id == vm_id), None)
    accepted = await take_by_hand(parts, host_id, vm_id, "quarantine", actor, project=project, name=name)
    parts.poke(vm_id, accepted.pass_type, host_id)
    assert held is not None, "it was taken"  # noqa: S101
    return held.model_copy(update={"choice": "stopped"})


async def take_by_hand(
    parts: Parts,
    host_id: str,
    vm_id: str,
    becomes: Becomes,
    actor: Actor,
    *,
    project: str | None,
    name: str | None,
    restoring: bool = False,
) -> Accepted:
    """Make a VM's row as an operator chose; whether there is anything to make it of is known before the host is asked.

    `restoring`: a restore is settled, which is what else keeps everything as it is.
    """
    if all(vm.vm_id != vm_id for vm in await list_foreign(parts.pool, host_id)):
        raise not_held(vm_id)
    accepted = await _take(parts, host_id, vm_id, becomes, actor, project=project, name=name, restoring=restoring)
    assert accepted is not None, "only reports may fall short"  # noqa: S101
    return accepted


async def _take(
    parts: Parts,
    host_id: str,
    vm_id: str,
    becomes: Becomes,
    actor: Actor,
    *,
    project: str | None,
    name: str | None,
    restoring: bool = False,
) -> Accepted | None:
    answer = await parts.errands.ask(host_id, "record", vm_id, RECORD_LIMIT_BYTES)
    adopted = read_record(parts.keys, vm_id, answer, project=project, name=name, must_run=becomes == "adopt")
    terms = Terms(
        vanish_grace=max(parts.vanish_grace, parts.tombstone_grace),
        disk_grace=parts.tombstone_grace,
        brake=parts.vanish_brake,
        restoring=restoring,
    )
    return await take_foreign(parts.pool, host_id, adopted, becomes, actor, terms)


def read_record(
    keys: MasterKeys,
    vm_id: str,
    answer: bytes,
    *,
    project: str | None = None,
    name: str | None = None,
    must_run: bool = False,
) -> Adopted:
    """Read what a host keeps of a VM, believing nothing that a create would not take (S-1, S-5).

    project: whose an operator says that it is, which the record must say, too; None: nobody did, so that it becomes the
    operators'. must_run: it is to be adopted, for which its project is needed, from an operator or by the control
    plane's signature, and what its guest does now. Raise Conflict for any other record, Unavailable where nobody can
    tell what the guest does.
    """
    told = _parse(vm_id, answer)
    given = told.input
    if must_run and project is None and is_signed(keys, given):
        project = given.project
    if must_run or project is not None:
        check_project(vm_id, given.project, project)
    if must_run and told.power_state is None:
        raise Unavailable(f"what the VM {vm_id} does now its host cannot tell; try again in a moment")
    body = _validate(vm_id, told, name or given.name)
    user_data = body.user_data.encode() if body.user_data is not None else None
    spec = VmSpec(
        image=_image(keys, given.image, given.project),
        **{field: getattr(body, field) for field in _AS_GIVEN},
        firewall=given.firewall,
        user_data_bytes=len(user_data or b""),
        user_data_digest=keys.keyed_digest(user_data) if user_data is not None else None,
        host_certificate=told.has_host_certificate,
        volumes=tuple(volume.volume_id for volume in told.record.volumes),
    )
    new = NewVm(
        vm_id=vm_id,
        project=project or PUBLIC,
        name=body.name,
        power_state=told.power_state or PowerState.STOPPED,
        spec=spec,
        secrets=seal_vm(keys, vm_id, _secrets(given)),
    )
    return Adopted(new, given.mac, told.record, given.created_at, told.ssh_host_key, given.project)


_AS_GIVEN = (
    *("cpu_millicores", "memory_mib", "disk_gib", "ssh_authorized_keys", "ssh_user_cas", "metadata", "hypervisor"),
    *("on_guest_poweroff", "stop_timeout_seconds", "boot_priority"),
)


def _parse(vm_id: str, answer: bytes) -> HostRecord:
    try:
        told = HostRecord.model_validate_json(answer)
        _Called(name=told.input.project)
    except pydantic.ValidationError:
        raise Conflict(
            f"the host has no readable record of the VM {vm_id}, or a worker that is too old to tell it: there is "
            "nothing to make a row of"
        ) from None
    macs = {mac_address(vm_id, draw=draw) for draw in range(MAC_DRAWS)}
    if told.input.vm_id != vm_id or told.input.mac not in macs:
        raise Conflict(f"the host's record of the VM {vm_id} is another VM's: it is not believed")
    return told


def _validate(vm_id: str, told: HostRecord, name: str) -> NewVmBody:
    """Have a create's own checks judge the record; raise Conflict with the first thing that it would refuse."""
    given = told.input
    image: dict[str, Any] = given.image.model_dump(exclude_none=True, exclude={"reference", "owner"})
    image["rootfs"]["format"] = image.pop("format", None)
    body: dict[str, Any] = {field: getattr(given, field) for field in _AS_GIVEN}
    body["firewall"] = given.firewall.model_dump()
    try:
        if given.user_data is not None:
            body["user_data"] = base64.b64decode(given.user_data, validate=True).decode()
        NewImageBody.model_validate({"name": "recorded", **image})
        reference = given.image.reference or "recorded"
        return NewVmBody.model_validate({**body, "name": name, "image": reference})
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except ValueError:
        why = "user_data is no UTF-8 in base64"
    raise Conflict(f"the host's record of the VM {vm_id} is none that a create would take: {why}")


def _image(keys: MasterKeys, given: Image, project: str) -> ImageSpec:
    """Take the image over; it is the project's own, or the operators' (S-19)."""

    def file(told: ImageFile) -> FileSpec:
        url = redact_url(told.url)
        return FileSpec(
            url=url, signed=url != told.url, url_digest=keys.keyed_digest(told.url.encode()), sha256=told.sha256
        )

    return ImageSpec(
        reference=given.reference,
        owner=PUBLIC if given.owner == PUBLIC else project,
        architecture=given.architecture,
        rootfs=file(given.rootfs),
        format=given.format,
        kernel=file(given.kernel) if given.kernel else None,
        initrd=file(given.initrd) if given.initrd else None,
        command_line=given.command_line,
        firmware=given.firmware,
    )


def _secrets(given: VmInput) -> Secrets:
    files: dict[FileRole, ImageFile | None] = {role: getattr(given.image, role) for role in FILE_ROLES}
    urls: dict[FileRole, SecretStr] = {role: SecretStr(file.url) for role, file in files.items() if file is not None}
    return Secrets(user_data=SecretStr(given.user_data) if given.user_data is not None else None, urls=urls)
