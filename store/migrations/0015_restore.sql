-- Since when and why the store is known to be behind its hosts (H-R1).
alter table fleet add column behind_since timestamptz, add column behind_why text;
-- Meanwhile: what hosts tell of each VM that they hold, and what a person settled.
create table restore_told (
    host_id text not null references hosts (id) on delete cascade,
    vm_id text not null,
    told jsonb not null,
    at timestamptz not null default now(),
    primary key (host_id, vm_id)
);
create table restore_settled (
    host_id text not null references hosts (id) on delete cascade,
    vm_id text not null,
    choice text not null,
    actor text not null,
    at timestamptz not null default now(),
    primary key (host_id, vm_id)
);
