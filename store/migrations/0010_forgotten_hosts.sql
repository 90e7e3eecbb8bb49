-- A host that was given up (L-R10): its name is free again; what it still holds is stopped under `forgotten_pass`, which
-- is above every order that it can have.
alter table hosts add column forgotten_at timestamptz, add column forgotten_pass bigint;
alter table hosts drop constraint hosts_name_key;
create unique index hosts_name_key on hosts (name) where status <> 'forgotten';
-- The row of a VM as it was when its host was given up, for as long as its entry is kept.
alter table gone add column forgotten jsonb;
create index gone_forgotten on gone (host_id, vm_id) where forgotten is not null;
