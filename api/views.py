"""Rows as callers see them: JSON documents without secrets, and without the fleet for a project (S-32, S-33)."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any
from urllib.parse import quote

from model.text import clean_text
from store.host import StoredHost
from store.image import StoredImage
from store.operation import Operation
from store.vm import StoredVm

Document = dict[str, Any]


def vm_view(vm: StoredVm, *, project: str | None, operation: Document | None = None) -> Document:
    """Show a VM's row. What nobody can tell is null; `last_known` says what was seen last (H-S10)."""
    spec = vm.spec
    known = {"phase": vm.last_phase.value, "power_state": vm.last_power_state, "seen_at": _time(vm.observed_at)}
    host: Document | None = {"id": vm.host_id, "name": vm.host_name} if project is None else None
    quarantine = vm.quarantine
    return {
        "id": vm.id,
        "project": vm.project,
        "name": vm.name,
        "phase": vm.phase.value,
        "power_state": vm.power_state,
        "desired_power_state": vm.desired_power_state.value,
        "status_detail": vm.status_detail,
        "last_error": _text(vm.last_error or vm.unreadable),
        "last_exit": vm.last_exit.model_dump(mode="json") if vm.last_exit else None,
        "last_known": known,
        "addresses": {"ip": vm.address, "ip6": None, "network_ip": None},
        "mac": vm.mac,
        "ssh_host_key": vm.ssh_host_key,
        "image": spec.image.reference or spec.image.rootfs.url,
        "cpu_millicores": spec.cpu_millicores,
        "memory_mib": spec.memory_mib,
        "disk_gib": spec.disk_gib,
        "ssh_authorized_keys": list(spec.ssh_authorized_keys),
        "user_data": {"bytes": spec.user_data_bytes} if spec.user_data_bytes else None,
        "hypervisor": spec.hypervisor,
        "on_guest_poweroff": spec.on_guest_poweroff,
        "stop_timeout_seconds": spec.stop_timeout_seconds,
        "boot_priority": spec.boot_priority,
        "labels": vm.labels,
        "metadata": spec.metadata,
        "generation": vm.generation,
        "spec_generation": vm.spec_generation,
        "restart_generation": vm.restart_generation,
        "rebuild_generation": vm.rebuild_generation,
        "observed_generation": vm.observed_generation,
        "create_attempts": vm.create_attempts,
        "restart_count": vm.restart_count,
        "first_ready_at": _time(vm.first_ready_at),
        "settled": vm.settled,
        "host": host,
        "last_seen_at": _time(vm.observed_at),
        "quarantine": (
            {"kind": quarantine.kind, "since": _time(quarantine.since), "destroy_at": _time(quarantine.destroy_at)}
            if quarantine
            else None
        ),
        "due_at": _time(vm.due_at),
        "created_at": _time(vm.created_at),
        "updated_at": _time(vm.updated_at),
        "operation": operation,
    }


def operation_view(operation: Operation, *, ui_url: str | None) -> Document:
    """Show an operation; `ui_url` makes the link to its runs, for those who may see the fleet."""
    link = None
    if ui_url is not None:
        workflow = quote(operation.workflow_id, safe="")
        link = f"{ui_url}/namespaces/default/workflows/{workflow}" + (
            f"/{operation.run_id}/history" if operation.run_id else ""
        )
    shown = {name: _time(value) if isinstance(value, datetime) else value for name, value in asdict(operation).items()}
    return {**shown, "error": _text(operation.error), "link": link}


def host_view(host: StoredHost) -> Document:
    """Show a host with what it last reported."""
    report = host.report
    return {
        "id": host.id,
        "name": host.name,
        "labels": dict(host.labels),
        "status": host.status,
        "silent": host.silent,
        "instance_id": host.instance_id,
        "boot_id": host.boot_id,
        "worker_version": host.worker_version,
        "activity_names": list(host.activity_names),
        "last_report_at": _time(host.last_report_at),
        "state_lost_at": _time(host.state_lost_at),
        "rolled_back_at": _time(host.rolled_back_at),
        "joined_at": _time(host.joined_at),
        "vms": host.vms,
        "vms_deleted": host.vms_deleted,
        "capacity": report.capacity.model_dump(mode="json") if report else None,
        "hypervisors": [h.model_dump(mode="json") for h in report.hypervisors] if report else [],
        "unmanaged": report.unmanaged if report else None,
    }


def image_view(image: StoredImage) -> Document:
    """Show an image; its URLs have no user part and no query."""
    spec = image.spec
    files = {
        role: {"url": file.url, "sha256": file.sha256}
        for role, file in (("rootfs", spec.rootfs), ("kernel", spec.kernel), ("initrd", spec.initrd))
        if file is not None
    }
    return {
        "id": image.id,
        "project": image.project,
        "name": image.name,
        "architecture": spec.architecture,
        "format": spec.format,
        "firmware": spec.firmware,
        "command_line": spec.command_line,
        **files,
        "created_at": _time(image.created_at),
    }


def _time(value: datetime | None) -> str | None:
    return None if value is None else value.isoformat()


def _text(value: str | None) -> str | None:
    return None if value is None else clean_text(value)
