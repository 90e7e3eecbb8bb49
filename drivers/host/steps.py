"""The steps of a VM on this host as one thing, which activities call and the worker builds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Concatenate, ParamSpec

from drivers.durable import make_folder
from drivers.host.alone import Alone
from drivers.host.cache import ImagePolicies
from drivers.host.certify import CertifySteps
from drivers.host.destroy import DestroySteps
from drivers.host.ending import Ending
from drivers.host.given_up import GivenUp
from drivers.host.look import Looker
from drivers.host.network import NetworkSteps
from drivers.host.parts import Parts
from drivers.host.power import PowerSteps
from drivers.host.prepare import PrepareSteps
from drivers.host.rebuild import RebuildSteps
from drivers.host.storage import StorageSteps
from drivers.host.sync import SyncSteps
from drivers.host.volumes import VolumeSteps
from drivers.host.watch import Watch
from drivers.jobs import Job
from drivers.records import CONFIG
from model.errors import Failed
from model.record import HostOrder, View

P = ParamSpec("P")
_log = logging.getLogger("hostler.host")


class HostSteps:
    """What a host does with its VMs. Each step is called by `run`, under its order, and answers what is there then."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.looker = Looker(parts)
        self.policies = ImagePolicies(parts.images, parts.space)
        self.watch = Watch(parts, self.looker, self.policies)
        self.sync = SyncSteps(parts, {"image_policies": self.policies.apply})
        ending = Ending(parts, self.looker)
        prepare = PrepareSteps(parts, ending)
        self.certify = CertifySteps(parts, prepare).certify
        storage = StorageSteps(parts)
        power = PowerSteps(parts, ending)
        destroy = DestroySteps(parts, self.looker, ending)
        self.prepare, self.complete, self.apply = prepare.prepare, prepare.complete, prepare.apply
        self.fetch_image, self.make_disk = storage.fetch_image, storage.make_disk
        self.write_seed, self.grow_disk = storage.write_seed, storage.grow_disk
        rebuild = RebuildSteps(parts, prepare)
        self.set_aside, self.drop_kept = rebuild.set_aside, rebuild.drop_kept
        self.volumes = VolumeSteps(parts, ending)
        self.ensure_volume, self.detach_volume = self.volumes.ensure_volume, self.volumes.detach_volume
        self.set_network = NetworkSteps(parts).set_network
        self.boot, self.pause, self.resume = power.boot, power.pause, power.resume
        self.stop, self.record_stop, self.note_restart = power.stop, power.record_stop, power.note_restart
        self.quarantine, self.release = power.quarantine, power.release
        self.alone = Alone(parts, power.boot, self.watch.look_soon, after_seconds=parts.alone_after_seconds)
        self.given_up = GivenUp(parts, lambda order: self.run(order, power.quarantine))
        self.destroy_process, self.destroy_network = destroy.destroy_process, destroy.destroy_network
        self.destroy_storage, self.destroy_records = destroy.destroy_storage, destroy.destroy_records

    async def start(self) -> None:
        """Read every record and fence, find out what runs, bring the network up: before any work is asked for (L-G8).

        No guest is touched (H-E5).
        """
        parts = self.parts
        parts.jobs.start()
        await asyncio.to_thread(make_folder, parts.paths.home / "sockets")
        await asyncio.to_thread(parts.records.load)
        await asyncio.to_thread(parts.volumes.load)
        await asyncio.to_thread(parts.jobs.fences.load)
        for entry in parts.records:
            if entry.unreadable:
                _log.error("the record of VM %s cannot be read: %s", entry.vm_id, entry.unreadable)
            elif entry.status is None:
                _log.warning("VM %s has only one of its two records, %s: it counts all the same", entry.vm_id, CONFIG)
        parts.seen.load()
        await parts.probe()
        await parts.network.start()
        await self.watch.adopt()
        await self.sync.load()

    async def look(self, order: HostOrder) -> View:
        """Look for an order, without the VM's lock; its fence counts from now on."""
        async with self.parts.jobs.order(order.vm_id, order.fence) as job:
            view = await self.looker.view(order.vm_id, job.guard)
            if view.observed.nothing:
                await self.parts.jobs.fences.mark_gone(order.vm_id)
            return view

    async def run(
        self,
        order: HostOrder,
        step: Callable[Concatenate[Job, HostOrder, P], Awaitable[str | None]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> View:
        """Do one step under its order, and look afterwards; `waiting` says that the step could not begin."""
        async with self.parts.jobs.order(order.vm_id, order.fence) as job:
            try:
                waiting = await step(job, order, *args, **kwargs)
            except Failed:
                self.watch.look_soon(order.vm_id)
                raise
            view = await self.looker.view(order.vm_id, job.guard)
            return view.model_copy(update={"waiting": waiting})
