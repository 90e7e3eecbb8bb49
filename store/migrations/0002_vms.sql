-- A VM's row: three parts with one guard each (L-G9), and wake and due_at, which belong to none of them.
create table vms (
    id text primary key,
    project text not null,
    name text not null,
    host_id text not null references hosts (id),

    -- Desired: what the user asked for; guarded by the generation.
    spec jsonb not null,
    secrets bytea not null,
    input_digest text not null,
    fingerprint text not null,
    power_state text not null check (power_state in ('running', 'paused', 'stopped')),
    deleted boolean not null default false,
    generation bigint not null default 1,
    spec_generation bigint not null default 1,
    restart_generation bigint not null default 0,
    rebuild_generation bigint not null default 0,
    disk_gib integer check (disk_gib > 0),
    stop_timeout_seconds integer not null check (stop_timeout_seconds >= 0),
    on_guest_poweroff text not null check (on_guest_poweroff in ('start', 'stop')),
    mac text not null,
    labels jsonb not null default '{}',
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    -- The quarantine's deadline is fixed in the transaction of the delete (L-R3).
    quarantine_kind text check (quarantine_kind in ('tombstone', 'vanished')),
    quarantine_since timestamptz,
    quarantine_grace interval,
    quarantine_stopped_at timestamptz,
    destroy_at timestamptz,
    held boolean not null default false,
    held_by text,

    -- Status: what passes have written; guarded by the owning pass.
    pass_number bigint not null default 0,
    run_id text,
    step integer not null default 0,
    claim_until timestamptz,
    ended_pass bigint,
    phase text not null default 'creating' check (phase in
        ('creating', 'ready', 'sleeping', 'failed', 'quarantined', 'destroying', 'migrating', 'unknown')),
    status_detail text,
    last_error text,
    failures integer not null default 0,
    retry_at timestamptz,
    resting boolean not null default false,
    unreachable_since timestamptz,
    create_attempts integer not null default 0 check (create_attempts >= 0),
    attempt_pass bigint,
    given_back_pass bigint,
    refunds integer not null default 0,
    observed_generation bigint not null default 0,
    first_ready_at timestamptz,
    destroying boolean not null default false,

    -- Observed: what the host saw last; guarded by its instance and the VM's revision there.
    observed_instance text,
    observed_revision bigint not null default 0,
    observed_power_state text check (observed_power_state in ('running', 'paused', 'stopped')),
    observed_at timestamptz,
    address inet,
    address_refused inet,
    ssh_host_key text,
    last_exit jsonb,
    restart_count integer not null default 0,
    unreadable text,

    wake bigint not null default 1,
    due_at timestamptz default now(),

    constraint vms_name_key unique (project, name),
    constraint vms_mac_key unique (mac),
    constraint vms_address_key unique (host_id, address),
    constraint vms_quarantine check (
        (quarantine_kind is null) = (destroy_at is null)
        and (quarantine_kind is null) = (quarantine_since is null)
        and (quarantine_kind is null) = (quarantine_grace is null))
);
create index vms_due on vms (due_at) where due_at is not null;
create index vms_host on vms (host_id);

-- Which pass a run drew: a repeated claim gets the same one. A run that takes ownership anew has another key.
create table claims (
    vm_id text not null references vms (id) on delete cascade,
    claim_key text not null,
    pass_number bigint not null,
    at timestamptz not null default now(),
    primary key (vm_id, claim_key)
);

create table gone (
    vm_id text primary key,
    project text not null,
    name text not null,
    host_id text not null,
    pass_number bigint not null,
    at timestamptz not null default now()
);
create index gone_at on gone (at);

create table operations (
    id text primary key,
    vm_id text not null,
    project text not null,
    kind text not null,
    generation bigint not null,
    workflow_id text not null,
    run_id text,
    attempts integer not null default 0,
    created_at timestamptz not null default now(),
    started_at timestamptz,
    ended_at timestamptz,
    result text check (result in ('settled', 'failed', 'superseded', 'gone')),
    error text,
    constraint operations_ended check ((ended_at is null) = (result is null))
);
create index operations_of_vm on operations (vm_id, id desc);
create index operations_open on operations (vm_id) where ended_at is null;
