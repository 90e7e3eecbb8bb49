"""The heavy steps of one VM on its host, on a queue of their own, so that a stop never waits behind a copy (H-E4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from temporalio import activity

from activities.progress import report_progress
from model.record import HostOrder, View

if TYPE_CHECKING:
    from drivers.host.steps import HostSteps


class ImageActivities:
    """Steps on the host's bulk queue."""

    def __init__(self, host: HostSteps) -> None:
        self._host = host

    @activity.defn
    async def ensure_image(self, order: HostOrder) -> View:
        """Have every file of the image on the host, inside a create slot (L-C7, L-C8)."""
        return await self._host.run(order, self._host.fetch_image, report_progress)

    @activity.defn
    async def ensure_root_disk(self, order: HostOrder) -> View:
        """Make the root disk of the image, and give the create slot back (L-C9)."""
        return await self._host.run(order, self._host.make_disk, report_progress)
