"""Which counters an accepted change raises (L-N1 to L-N4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.errors import Conflict
from model.generations import VmChange, Wish, apply_change, apply_rebuild, apply_restart
from model.specification import (
    FileSpec,
    ImageSpec,
    NewVm,
    Secrets,
    VmSpec,
    fingerprint,
    input_digest,
    redact_url,
    same_urls,
    vm_input,
)
from model.vm import PowerState

WORDS = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["", "x", "y"]), max_size=3)
CHANGES = st.builds(
    VmChange,
    power_state=st.none() | st.sampled_from(PowerState),
    cpu_millicores=st.none() | st.integers(999, 1001),
    memory_mib=st.none() | st.integers(511, 513),
    disk_gib=st.none() | st.integers(1, 5),
    stop_timeout_seconds=st.none() | st.integers(89, 91),
    on_guest_poweroff=st.none() | st.sampled_from(["start", "stop"]),
    boot_priority=st.none() | st.integers(-1, 1),
    termination_protection=st.none() | st.booleans(),
    ssh_authorized_keys=st.none() | st.lists(st.sampled_from(["k1", "k2"]), max_size=2).map(tuple),
    metadata=st.none() | WORDS,
    labels=st.none() | WORDS,
)


def file(url: str = "https://images.test/root", *, signed: bool = False, url_digest: str = "1") -> FileSpec:
    return FileSpec(url=url, signed=signed, url_digest=url_digest, sha256="a" * 64)


def spec(**changes: object) -> VmSpec:
    fields = {"image": ImageSpec(owner="p", rootfs=file()), "cpu_millicores": 1000, "memory_mib": 512, **changes}
    return VmSpec.model_validate(fields)


def wish(**changes: object) -> Wish:
    fields = {
        "power_state": PowerState.RUNNING,
        "labels": {},
        "spec": spec(disk_gib=2),
        "generation": 1,
        "spec_generation": 1,
        "restart_generation": 0,
        **changes,
    }
    return Wish.model_validate(fields)


def new(**changes: object) -> NewVm:
    fields = {"vm_id": "v", "project": "p", "name": "n", "host_id": "h", "spec": spec(), "secrets": b"", **changes}
    return NewVm.model_validate(fields)


@given(st.lists(CHANGES, max_size=6))
def test_a_generation_rises_once_for_each_change_that_changes_something(changes: list[VmChange]) -> None:
    """L-N1, L-N2: and moves nothing else."""
    before = wish()
    for change in changes:
        try:
            changed = apply_change(before, change)
        except Conflict:
            assert change.disk_gib is not None
            assert before.spec.disk_gib is not None
            assert change.disk_gib < before.spec.disk_gib
            continue
        after = changed.wish
        plain = {"generation": 0, "spec_generation": 0}
        differs = after.model_copy(update=plain) != before.model_copy(update=plain)
        sizes = [(w.spec.cpu_millicores, w.spec.memory_mib, w.spec.disk_gib) for w in (before, after)]
        assert bool(changed.fields) is differs
        assert after.generation == before.generation + differs
        assert after.spec_generation == before.spec_generation + (sizes[0] != sizes[1])
        assert changed.needs_stopped is (sizes[0][:2] != sizes[1][:2])
        assert after.restart_generation == before.restart_generation
        assert apply_change(after, change).fields == (), "the same request again moves nothing"
        before = after


@pytest.mark.parametrize(
    ("change", "given_to_create"),
    [
        (VmChange(disk_gib=3), True),
        (VmChange(ssh_authorized_keys=("k",)), True),
        (VmChange(metadata={"a": "b"}), True),
        (VmChange(cpu_millicores=2000), True),
        (VmChange(memory_mib=513), True),
        (VmChange(stop_timeout_seconds=5), False),
        (VmChange(termination_protection=True), False),
        (VmChange(labels={"a": "b"}), False),
        (VmChange(power_state=PowerState.STOPPED), False),
        (VmChange(disk_gib=2), False),
    ],
)
def test_what_takes_a_resting_vm_up_again(change: VmChange, given_to_create: bool) -> None:
    """L-C4."""
    assert apply_change(wish(), change).given is given_to_create


def test_a_disk_of_its_images_size_may_be_given_a_size() -> None:
    assert apply_change(wish(spec=spec()), VmChange(disk_gib=1)).wish.spec.disk_gib == 1


@pytest.mark.parametrize("power_state", PowerState)
def test_a_restart_raises_its_own_counter_alone(power_state: PowerState) -> None:
    """L-N3: accepted only while running is wanted."""
    before = wish(power_state=power_state)
    if power_state is not PowerState.RUNNING:
        with pytest.raises(Conflict, match=power_state.value):
            apply_restart(before)
        return
    assert apply_restart(before) == before.model_copy(update={"restart_generation": 1})


def test_a_rebuild_raises_its_counters_once_and_changes_the_image_alone() -> None:
    """L-N2, L-N3: whatever power state is wanted; the restarts are not touched."""
    before = wish(power_state=PowerState.STOPPED)
    risen = {"generation": 2, "spec_generation": 2, "rebuild_generation": 1}
    assert apply_rebuild(before) == before.model_copy(update=risen)
    image = ImageSpec(owner="p", rootfs=file("https://images.test/other"))
    assert apply_rebuild(before, image) == before.model_copy(update={**risen, "spec": spec(disk_gib=2, image=image)})


def test_a_refreshed_url_is_the_same_vm() -> None:
    """L-N4: signed URLs are blanked; the input's digest stays, so that no other VM is made."""
    one = new(spec=spec(image=ImageSpec(owner="p", rootfs=file("https://a/1", signed=True, url_digest="1"))))
    two = new(spec=spec(image=ImageSpec(owner="p", rootfs=file("https://b/2", signed=True, url_digest="2"))))
    assert fingerprint(one) == fingerprint(two)
    assert not same_urls(one.spec, two.spec)
    place = {"vm_id": "v", "project": "p", "name": "n", "mac": "m"}
    assert input_digest(**place, spec=one.spec) == input_digest(**place, spec=two.spec)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "m"},
        {"project": "q"},
        {"requested_host": "h"},
        {"labels": {"a": "b"}},
        {"termination_protection": True},
        {"power_state": PowerState.STOPPED},
        {"spec": spec(memory_mib=513)},
        {"spec": spec(user_data_digest="d")},
        {"spec": spec(sleep_after_idle_seconds=60)},
        {"spec": spec(image=ImageSpec(owner="p", rootfs=file("https://images.test/other")))},
    ],
)
def test_another_request_has_another_fingerprint(changes: dict[str, object]) -> None:
    """L-N4."""
    assert fingerprint(new(**changes)) != fingerprint(new())


def test_where_it_was_placed_is_not_what_was_asked() -> None:
    assert fingerprint(new(host_id="other")) == fingerprint(new())


def test_a_redacted_url_keeps_no_secret() -> None:
    """S-33."""
    assert redact_url("https://user:word@a.test:8443/b/c?sig=1#f") == "https://a.test:8443/b/c"


def test_secrets_reach_the_input_and_no_print() -> None:
    """S-33: the type cannot be printed."""
    from datetime import UTC, datetime

    url = "https://a/1?sig=canary"
    secrets = Secrets.model_validate({"user_data": "canary", "urls": {"rootfs": url}})
    assert "canary" not in f"{secrets} {secrets!r} {secrets.model_dump_json()}"
    back = Secrets.from_bytes(secrets.to_bytes())
    made = vm_input(
        vm_id="v",
        project="p",
        name="n",
        mac="m",
        digest="d" * 64,
        spec=spec(),
        secrets=back,
        created_at=datetime(2030, 1, 1, tzinfo=UTC),
    )
    assert (made.user_data, made.image.rootfs.url) == ("canary", url)
