"""A host's network for VMs."""

from drivers.network.addresses import draw_address
from drivers.network.attachment import Attachment, AttachmentState, NetworkInventory
from drivers.network.network import Network

__all__ = ["Attachment", "AttachmentState", "Network", "NetworkInventory", "draw_address"]
