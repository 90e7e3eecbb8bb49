"""What an accepted change does to the desired state, and which of its counters rise (L-N1 to L-N3)."""

from __future__ import annotations

from typing import Any, Literal

from model.base import Frozen
from model.errors import Conflict
from model.firewall import Firewall
from model.specification import ImageSpec, VmSpec
from model.vm import GuestPoweroff, PowerState

SIZES = frozenset({"cpu_millicores", "memory_mib"})
"""What a guest is started with: changing it needs one that is stopped (L-V8)."""
_AT_NEXT_BOOT = frozenset({"ssh_authorized_keys", "metadata"})
# What a create is given: a change of it takes a resting VM up again (L-C4).
_GIVEN = frozenset({"disk_gib", "volumes", *SIZES, *_AT_NEXT_BOOT})
_RAISES_SPEC = frozenset({"disk_gib", "volumes", *SIZES})


class Wish(Frozen):
    """The desired state that changes act on."""

    power_state: PowerState
    labels: dict[str, str]
    termination_protection: bool = False
    spec: VmSpec
    generation: int
    spec_generation: int
    restart_generation: int
    rebuild_generation: int = 0


class VmChange(Frozen):
    """A change that was asked for. None leaves a field as it is."""

    power_state: PowerState | None = None
    cpu_millicores: int | None = None
    memory_mib: int | None = None
    disk_gib: int | None = None
    ssh_authorized_keys: tuple[str, ...] | None = None
    metadata: dict[str, str] | None = None
    on_guest_poweroff: GuestPoweroff | None = None
    stop_timeout_seconds: int | None = None
    boot_priority: int | None = None
    volumes: tuple[str, ...] | None = None
    firewall: Firewall | None = None
    labels: dict[str, str] | None = None
    termination_protection: bool | None = None

    @property
    def sizes(self) -> bool:
        """Whether it may ask the VM's host for more (L-V8)."""
        return any(getattr(self, name) is not None for name in _RAISES_SPEC)


class Changed(Frozen):
    """What a change came to. `fields` are those that really differ; without any the wish is the same as before."""

    wish: Wish
    fields: tuple[str, ...]

    @property
    def given(self) -> bool:
        """Whether something that a create is given changed (L-C4)."""
        return bool(_GIVEN.intersection(self.fields))

    @property
    def needs_stopped(self) -> bool:
        """Whether the guest must be stopped for it (L-V8)."""
        return bool(SIZES.intersection(self.fields))

    @property
    def at_next_boot(self) -> tuple[str, ...]:
        """The fields that are in the guest's seed at once, and that it reads when it boots next (L-V8)."""
        return tuple(name for name in self.fields if name in _AT_NEXT_BOOT)

    @property
    def kind(self) -> Literal["change", "power"]:
        return "power" if self.fields == ("power_state",) else "change"


def apply_change(wish: Wish, change: VmChange) -> Changed:
    """Apply `change`; raise Conflict where the state forbids it. What is identical moves nothing (L-N1)."""
    asked: dict[str, Any] = {name: value for name, value in change if value is not None}
    spec_fields = {name: value for name, value in asked.items() if name in VmSpec.model_fields}
    fields = tuple(name for name, value in asked.items() if value != _current(wish, name))
    if "disk_gib" in fields and wish.spec.disk_gib is not None and asked["disk_gib"] < wish.spec.disk_gib:
        raise Conflict(
            f"a root disk only grows: it has {wish.spec.disk_gib} GiB, {asked['disk_gib']} GiB was asked for"
        )
    if not fields:
        return Changed(wish=wish, fields=())
    wanted = wish.model_copy(
        update={
            **{name: value for name, value in asked.items() if name not in spec_fields},
            "spec": wish.spec.model_copy(update=spec_fields),
            "generation": wish.generation + 1,
            "spec_generation": wish.spec_generation + bool(_RAISES_SPEC.intersection(fields)),
        }
    )
    return Changed(wish=wanted, fields=fields)


def apply_restart(wish: Wish) -> Wish:
    """Ask for one restart; nothing else rises with it (L-N3). Raise Conflict unless running is wanted."""
    if wish.power_state is not PowerState.RUNNING:
        raise Conflict(f"only a VM that is wanted running is restarted; this one is wanted {wish.power_state.value}")
    return wish.model_copy(update={"restart_generation": wish.restart_generation + 1})


def apply_rebuild(wish: Wish, image: ImageSpec | None = None) -> Wish:
    """Ask for one rebuild, from the same image or another; the machine's specification counts as changed (L-N2)."""
    return wish.model_copy(
        update={
            "spec": wish.spec if image is None else wish.spec.model_copy(update={"image": image}),
            "generation": wish.generation + 1,
            "spec_generation": wish.spec_generation + 1,
            "rebuild_generation": wish.rebuild_generation + 1,
        }
    )


def _current(wish: Wish, name: str) -> Any:
    return getattr(wish.spec if name in VmSpec.model_fields else wish, name)
