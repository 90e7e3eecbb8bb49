"""What one VM is on this host: records, hypervisor, network, image and disk as one thing.

parts.py     everything that a step works with
look.py      what is there of a VM
seen.py      what was last seen of each VM, for reports
prepare.py, storage.py, power.py, settle.py, destroy.py     the steps, by what they change
watch.py     adoption at start, exits, slow looks
steps.py     the one thing that activities and the worker hold
"""
