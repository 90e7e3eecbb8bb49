-- H-S1: the complete sets of each host in one revision, the newest sync with the run that drew its number, and what the
-- host acknowledged. `wake` and `due_at` of hosts are those of their syncs.
alter table hosts
    add column sets jsonb not null default '{}',
    add column sets_revision bigint not null default 0,
    add column sync_number bigint not null default 0,
    add column sync_run text,
    add column synced jsonb not null default '{}';

-- H-S5, as model/versions.py has it: releases compare by their numbers; what is unset or no release is below every floor.
create function release_of(version text) returns integer[] language sql immutable as $$
    select case when found is not null and version not like '%dev%'
        then array[found[1]::integer, found[2]::integer, coalesce(found[3], '0')::integer] end
    from regexp_match(version, '^([0-9]{1,9})\.([0-9]{1,9})(?:\.([0-9]{1,9}))?') as found
$$;
create function is_below(worker text, floor text) returns boolean language sql immutable as $$
    select release_of(floor) is not null and coalesce(release_of(worker) < release_of(floor), true)
$$;
