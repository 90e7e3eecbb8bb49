-- H-R2: when VMs of the host vanished, or were stopped as misplaced, within the last hour.
alter table hosts add column vanished_at timestamptz[] not null default '{}';
-- L-R1: whose a VM is that vanished by its host's record alone, until an operator says so, too.
alter table vms add column told_project text;
