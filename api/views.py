"""Rows as callers see them: without secrets, and without the fleet for a project (S-32, S-33)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any
from urllib.parse import quote

from api.documents.base import HostName, OperationDocument, VmName
from api.documents.campaign import CampaignDocument, FailedVm
from api.documents.host import HeldDocument, HostDocument
from api.documents.image import FileDocument, ImageDocument
from api.documents.vm import (
    Addresses,
    CertificateDocument,
    LastKnown,
    OneVmDocument,
    QuarantineDocument,
    UserData,
    VmDocument,
    VmVolume,
    WhyDocument,
)
from api.documents.volume import VolumeDocument
from api.host_conditions import host_conditions
from api.why import error_for, why
from model.campaign import campaign_workflow_id
from model.capacity import find_excess
from model.specification import FileSpec
from model.text import clean_text
from model.volume import volume_serial
from store.campaign import StoredCampaign
from store.host import StoredHost
from store.image import StoredImage
from store.operation import Operation
from store.vm import StoredVm
from store.volume import StoredVolume

_AS_STORED = (
    *("id", "project", "name", "phase", "power_state", "desired_power_state", "mac", "labels"),
    *("termination_protection", "old_disk_until", "emulated", "host_labels", "anti_affinity_group"),
    *("generation", "spec_generation", "restart_generation", "rebuild_generation", "observed_generation"),
    *("create_attempts", "restart_count", "first_ready_at", "settled", "due_at", "created_at", "updated_at"),
    *("expected_by", "overdue", "held_by"),
)
BEHIND = (
    "the fleet's database is older than what its hosts were ordered last: until its operators have settled that, "
    "nothing is booted, stopped or destroyed"
)
_AS_SPECIFIED = (
    *("cpu_millicores", "memory_mib", "disk_gib", "ssh_authorized_keys", "hypervisor", "on_guest_poweroff"),
    *("stop_timeout_seconds", "boot_priority", "metadata", "ssh_user_cas", "firewall"),
)


def vm_view(
    vm: StoredVm,
    *,
    project: str | None,
    operation: OperationDocument | None = None,
    at_next_boot: tuple[str, ...] = (),
) -> VmDocument:
    """Show a VM's row. What nobody can tell is null; `last_known` says what was seen last (H-S10)."""
    spec, quarantine = vm.spec, vm.quarantine
    last_exit = vm.last_exit.model_copy(update={"reason": clean_text(vm.last_exit.reason)}) if vm.last_exit else None
    plain: dict[str, Any] = {name: getattr(vm, name) for name in _AS_STORED}
    plain.update({name: getattr(spec, name) for name in _AS_SPECIFIED})
    return VmDocument(
        **plain,
        status_detail=_text(vm.status_detail),
        last_error=_text(vm.below_floor or error_for(vm.last_error or vm.unreadable, project)),
        last_exit=last_exit,
        setbacks=vm.setbacks or 0,
        last_known=LastKnown(phase=vm.last_phase, power_state=vm.last_power_state, seen_at=vm.observed_at),
        addresses=Addresses(ip=vm.address),
        ssh_host_key=_text(vm.ssh_host_key),
        host_certificate=(
            CertificateDocument(serial=vm.certificate_serial, valid_until=vm.certificate_valid_until)
            if spec.host_certificate
            else None
        ),
        image=spec.image.reference or spec.image.rootfs.url,
        volumes=[VmVolume(**each, serial=volume_serial(each["id"])) for each in vm.volumes],
        user_data=UserData(bytes=spec.user_data_bytes, digest=spec.user_data_digest) if spec.user_data_digest else None,
        host=HostName(id=vm.host_id, name=vm.host_name) if project is None else None,
        last_seen_at=vm.observed_at,
        quarantine=(
            QuarantineDocument(kind=quarantine.kind, since=quarantine.since, destroy_at=quarantine.destroy_at)
            if quarantine
            else None
        ),
        standstill=BEHIND if vm.behind else None,
        at_next_boot=list(at_next_boot),
        operation=operation,
    )


def one_vm_view(
    vm: StoredVm, *, project: str | None, operations: list[OperationDocument], detail: str | None
) -> OneVmDocument:
    """Show a VM with its recent operations; `detail` is what its host says that it is doing right now."""
    plain: dict[str, Any] = dict(vm_view(vm, project=project, operation=operations[0] if operations else None))
    plain["status_detail"] = detail or plain["status_detail"]
    return OneVmDocument(**plain, operations=operations, why=why_view(vm, project=project))


def why_view(vm: StoredVm, *, project: str | None) -> WhyDocument | None:
    """Show what a VM waits for."""
    found = why(vm, project=project)
    if found is None:
        return None
    return WhyDocument(**{name: getattr(found, name) for name in WhyDocument.model_fields})


def operation_view(operation: Operation, *, project: str | None, runs_url: str | None) -> OperationDocument:
    """Show an operation; `runs_url` makes the link to its runs, for those who may see the fleet."""
    link = None
    if runs_url is not None:
        run = f"/{operation.run_id}/history" if operation.run_id else ""
        link = f"{runs_url}/{quote(operation.workflow_id, safe='')}{run}"
    plain: dict[str, Any] = {**asdict(operation), "error": _text(error_for(operation.error, project)), "link": link}
    return OperationDocument(**plain)


def campaign_view(campaign: StoredCampaign, *, runs_url: str | None) -> CampaignDocument:
    """Show a campaign and how far it is."""
    workflow_id = campaign_workflow_id(campaign.kind, campaign.id, campaign.host_id)
    names = CampaignDocument.model_fields.keys() & StoredCampaign.__dataclass_fields__.keys() - {"failures"}
    return CampaignDocument(
        **{name: getattr(campaign, name) for name in sorted(names)},
        failures=[FailedVm(vm_id=m.vm_id, name=m.name, why=_text(m.why) or "") for m in campaign.failures],
        workflow_id=workflow_id,
        link=None if runs_url is None else f"{runs_url}/{quote(workflow_id, safe='')}",
    )


def host_view(host: StoredHost, drain: CampaignDocument | None = None) -> HostDocument:
    """Show a host with what it last reported, and the drain that it is under."""
    report = host.report
    plain: dict[str, Any] = {name: getattr(host, name) for name in HostDocument.model_fields if hasattr(host, name)}
    return HostDocument(
        **plain,
        capacity=report.capacity if report else None,
        caps=report.caps if report else None,
        disk_room_gib=report.disk_room_gib if report else None,
        held=HeldDocument(
            live=host.live, leaving=host.leaving, leaving_vms=host.leaving_vms, leaving_until=host.leaving_until
        ),
        over_by=find_excess(report.caps, host.live + host.leaving) if report and report.caps else None,
        hypervisors=list(report.hypervisors) if report else [],
        unmanaged=report.unmanaged if report else None,
        conditions=host_conditions(host),
        drain=drain,
    )


def image_view(image: StoredImage, *, project: str | None) -> ImageDocument:
    """Show an image; its URLs have no user part and no query, and a project sees no path of the fleet."""
    spec = image.spec

    def file(given: FileSpec) -> FileDocument:
        hidden = project is not None and given.url.startswith("file:")
        return FileDocument(url=None if hidden else given.url, sha256=given.sha256)

    return ImageDocument(
        id=image.id,
        project=image.project,
        name=image.name,
        architecture=spec.architecture,
        format=spec.format,
        firmware=spec.firmware,
        command_line=spec.command_line,
        rootfs=file(spec.rootfs),
        kernel=file(spec.kernel) if spec.kernel else None,
        initrd=file(spec.initrd) if spec.initrd else None,
        created_at=image.created_at,
    )


def volume_view(volume: StoredVolume, *, project: str | None) -> VolumeDocument:
    """Show a volume; a project sees no host (S-32)."""
    plain: dict[str, Any] = {
        name: getattr(volume, name) for name in VolumeDocument.model_fields if name not in ("host", "vm")
    }
    host = HostName(id=volume.host_id, name=volume.host_name or "") if volume.host_id and project is None else None
    vm = VmName(id=volume.vm_id, name=volume.vm_name or "") if volume.vm_id else None
    return VolumeDocument(**plain, host=host, vm=vm)


def _text(value: str | None) -> str | None:
    return None if value is None else clean_text(value)
