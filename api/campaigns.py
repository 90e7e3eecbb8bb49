"""Campaigns as hosts and their operators see them: how far each is."""

from __future__ import annotations

from collections.abc import Sequence

from api.documents.campaign import CampaignDocument
from api.documents.host import HostDocument
from api.parts import Parts
from api.views import campaign_view, host_view
from store.host import StoredHost


async def drains_of(parts: Parts, host_ids: Sequence[str]) -> dict[str, CampaignDocument]:
    """Show the drains that these hosts are under, by host."""
    drains = await parts.campaigns.drains(host_ids)
    return {host_id: campaign_view(drain, runs_url=parts.runs_url(None)) for host_id, drain in drains.items()}


async def one_host_view(parts: Parts, host: StoredHost) -> HostDocument:
    """Show a host with its drain."""
    return host_view(host, (await drains_of(parts, [host.id])).get(host.id))
