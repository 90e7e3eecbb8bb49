-- A volume has a life of its own (H-V1). Which VM it is attached to is what is wanted, as the order of them in that VM's
-- specification; the host alone knows what is so. Without a host nobody has placed it yet.
create table volumes (
    id text primary key,
    project text not null,
    name text not null,
    size_gib integer not null check (size_gib > 0),
    host_id text references hosts (id),
    vm_id text references vms (id) on delete set null,
    -- When its host first said that it had made it, and how large it is there.
    made_at timestamptz,
    made_bytes bigint,
    deleted boolean not null default false,
    deleted_at timestamptz,
    destroy_at timestamptz,
    destroying boolean not null default false,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),

    constraint volumes_name_key unique (project, name),
    constraint volumes_attached check (vm_id is null or (host_id is not null and not deleted)),
    constraint volumes_deleted check (deleted = (destroy_at is not null) and (deleted or not destroying))
);
create index volumes_host on volumes (host_id);
create index volumes_vm on volumes (vm_id) where vm_id is not null;
