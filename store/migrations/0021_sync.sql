-- H-S1: the complete sets of each host in one revision, the newest sync with the run that drew its number, and what the
-- host acknowledged. `wake` and `due_at` of hosts are those of their syncs.
alter table hosts
    add column sets jsonb not null default '{}',
    add column sets_revision bigint not null default 0,
    add column sync_number bigint not null default 0,
    add column sync_run text,
    add column synced jsonb not null default '{}';
