"""From a request's body to a VM's row: the image found, secrets taken out and sealed, a host chosen."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Protocol

from pydantic import SecretStr

from api.bodies import FileBody, ImageBody, NewImageBody, NewVmBody
from api.gate import Caller
from api.parts import Parts
from model.errors import FieldError, Forbidden, Invalid, NotFound
from model.firewall import OPEN, Firewall
from model.specification import FILE_ROLES, FileRole, FileSpec, ImageSpec, NewVm, Secrets, VmSpec, redact_url
from runtime.keys import MasterKeys
from store.image import PUBLIC, StoredImage
from store.vm import StoredVm
from store.vm_rebuild import NewImage

_IMAGES = "images.secrets/"
_VMS = "vms.secrets/"


class _File(Protocol):
    @property
    def url(self) -> str: ...
    @property
    def sha256(self) -> str: ...


async def new_vm(parts: Parts, caller: Caller, body: NewVmBody, vm_id: str, there: StoredVm | None = None) -> NewVm:
    """Turn a body into what the store makes a row of; raise what keeps it from being one.

    `there`: the VM that has the id already. It lives where it lives, whatever could be chosen now (L-N4).
    """
    if body.host is not None and caller.project is not None:
        raise Forbidden("naming a host takes a token that belongs to no project; leave it out")
    project = caller.home
    image, urls = await _image_of(parts, caller, body.image, project)
    user_data = body.user_data.encode() if body.user_data is not None else None
    spec = VmSpec(
        image=image,
        cpu_millicores=body.cpu_millicores,
        memory_mib=body.memory_mib,
        disk_gib=body.disk_gib,
        ssh_authorized_keys=body.ssh_authorized_keys,
        user_data_bytes=len(user_data or b""),
        user_data_digest=parts.keys.keyed_digest(user_data) if user_data is not None else None,
        metadata=body.metadata,
        hypervisor=body.hypervisor,
        on_guest_poweroff=body.on_guest_poweroff,
        stop_timeout_seconds=body.stop_timeout_seconds,
        boot_priority=body.boot_priority,
        host_certificate=body.host_certificate,
        ssh_user_cas=body.ssh_user_cas,
        volumes=await find_volumes(parts, project, body.volumes),
        firewall=Firewall.model_validate(body.firewall.model_dump()) if body.firewall else OPEN,
    )
    secret = base64.b64encode(user_data).decode() if user_data is not None else None
    secrets = Secrets(user_data=SecretStr(secret) if secret is not None else None, urls=urls)
    requested_host = await find_host(parts, body.host) if body.host is not None else None
    return NewVm(
        vm_id=vm_id,
        project=project,
        name=body.name,
        host_id=requested_host if there is None else there.host_id,
        requested_host=requested_host,
        power_state=body.power_state,
        labels=body.labels,
        host_labels=body.host_labels,
        anti_affinity_group=body.anti_affinity_group,
        termination_protection=body.termination_protection,
        spec=spec,
        secrets=seal_vm(parts.keys, vm_id, secrets),
    )


async def find_volumes(parts: Parts, project: str, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the ids of volumes that a VM of the project is to have, by their ids or names."""
    found: list[str] = []
    for place, each in enumerate(wanted):
        try:
            volume_id = (await parts.volumes.get(project, each)).id
        except NotFound as error:
            raise Invalid(f"volumes: {error.detail}", errors=(FieldError(f"/volumes/{place}", error.detail),)) from None
        if volume_id in found:
            raise _invalid("volumes", f"the volume {each} is named twice, once by its id; name each once")
        found.append(volume_id)
    return tuple(found)


async def rebuild_image(parts: Parts, caller: Caller, vm: StoredVm, given: str | ImageBody) -> NewImage:
    """Turn the image of a rebuild into what the store makes the row's of; it belongs to the VM's project (S-19)."""
    image, urls = await _image_of(parts, caller, given, vm.project)

    def reseal(sealed: bytes) -> bytes:
        secrets = open_vm(parts.keys, vm.id, sealed).model_copy(update={"urls": urls})
        return seal_vm(parts.keys, vm.id, secrets)

    return NewImage(image, reseal)


def new_image(keys: MasterKeys, caller: Caller, body: NewImageBody, image_id: str) -> tuple[str, str, ImageSpec, bytes]:
    """Turn a body into an image's project, name, specification and sealed secrets."""
    name = body.name.removeprefix(f"{PUBLIC}/")
    if "/" in name:
        raise _invalid("name", "of a name with a folder only 'public/…' is known; leave the folder out")
    if name != body.name and caller.project is not None:
        raise Forbidden("public images take a token that belongs to no project")
    project = caller.project or PUBLIC
    files: dict[FileRole, FileBody] = {role: file for role in FILE_ROLES if (file := getattr(body, role)) is not None}
    for file in files.values():
        _check_source(caller, file)
    specs = {role: _file_spec(keys, file) for role, file in files.items()}
    spec = ImageSpec(
        reference=body.name,
        owner=project,
        architecture=body.architecture,
        format=body.rootfs.format,
        command_line=body.command_line,
        firmware=body.firmware,
        rootfs=specs["rootfs"],
        kernel=specs.get("kernel"),
        initrd=specs.get("initrd"),
    )
    urls: dict[FileRole, SecretStr] = {role: SecretStr(file.url) for role, file in files.items()}
    secrets = Secrets(urls=urls)
    return project, name, spec, keys.seal_at_rest(secrets.to_bytes(), _IMAGES + image_id)


def image_secrets(keys: MasterKeys, image: StoredImage) -> Secrets:
    """Open the whole URLs of a named image."""
    return Secrets.from_bytes(keys.open_at_rest(image.secrets, _IMAGES + image.id))


def seal_vm(keys: MasterKeys, vm_id: str, secrets: Secrets) -> bytes:
    """Seal a VM's secrets for its row (S-42)."""
    return keys.seal_at_rest(secrets.to_bytes(), _VMS + vm_id)


def open_vm(keys: MasterKeys, vm_id: str, sealed: bytes) -> Secrets:
    """Open a VM's secrets for its own host."""
    return Secrets.from_bytes(keys.open_at_rest(sealed, _VMS + vm_id))


async def find_host(parts: Parts, wanted: str) -> str:
    """Return the id of a host by its id or name; whether it takes the VM is judged when the row is made (H-P6)."""
    try:
        return (await parts.hosts.get(wanted)).id
    except NotFound:
        raise _invalid("host", f"there is no host {wanted}; `hostler host ls` lists those that are there") from None


def _invalid(field: str, text: str) -> Invalid:
    return Invalid(f"{field}: {text}", errors=(FieldError(f"/{field}", text),))


async def _image_of(
    parts: Parts, caller: Caller, given: str | ImageBody, project: str
) -> tuple[ImageSpec, dict[FileRole, SecretStr]]:
    if isinstance(given, ImageBody):
        _check_source(caller, given)
        spec = ImageSpec(owner=project, rootfs=_file_spec(parts.keys, given), format=given.format)
        return spec, {"rootfs": SecretStr(given.url)}
    try:
        stored = await parts.images.find(project, given)
    except NotFound:
        raise _invalid("image", f"there is no image {given}; `hostler image ls` lists those that are there") from None
    return stored.spec.model_copy(update={"reference": given}), image_secrets(parts.keys, stored).urls


def _check_source(caller: Caller, file: FileBody) -> None:
    if file.url.startswith("file:") and caller.project is not None:
        raise Forbidden("file: URLs take a token that belongs to no project; use http or https")


def _file_spec(keys: MasterKeys, file: _File) -> FileSpec:
    url = redact_url(file.url)
    return FileSpec(
        url=url, signed=url != file.url, url_digest=keys.keyed_digest(file.url.encode()), sha256=file.sha256
    )
