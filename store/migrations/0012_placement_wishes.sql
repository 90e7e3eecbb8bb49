-- What a VM asked of its host when it was made (H-P1): labels, and not to be beside others of its group.
alter table vms add column host_labels jsonb not null default '{}', add column anti_affinity_group text;
create index vms_anti_affinity on vms (project, anti_affinity_group) where anti_affinity_group is not null;
