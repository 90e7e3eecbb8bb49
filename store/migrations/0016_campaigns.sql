-- Campaigns: operations over many VMs that go on until they are done or cancelled (H-D1, H-D3). The row is what is
-- wanted and how far it is; `wake` and `due_at` are as those of a VM's row. state: a drain that is done stays so, and
-- keeps its VMs held, until it is cancelled by an undrain.
create table campaigns (
    id text primary key,
    kind text not null check (kind in ('drain', 'roll')),
    host_id text references hosts (id) on delete set null,
    policy text check (policy in ('stop', 'leave')),
    status_before text,
    selector jsonb,
    batch_size integer not null check (batch_size >= 1),
    most_failures integer check (most_failures >= 0),
    state text not null default 'running' check (state in ('running', 'paused', 'done', 'cancelled')),
    paused_by text,
    made_by text not null,
    wake bigint not null default 1,
    due_at timestamptz default now(),
    created_at timestamptz not null default now(),
    ended_at timestamptz,
    constraint campaigns_drain check (kind <> 'drain' or (policy is not null and status_before is not null))
);
create index campaigns_due on campaigns (due_at) where due_at is not null;
create unique index campaigns_one_drain on campaigns (host_id) where kind = 'drain' and state <> 'cancelled';

-- Of a drain: whom it has stopped. Of a rolling restart: whom it is for, and the generation that its restart has.
create table campaign_vms (
    campaign_id text not null references campaigns (id) on delete cascade,
    vm_id text not null,
    generation bigint,
    skipped text,
    primary key (campaign_id, vm_id)
);

-- A holder may want the guest stopped for as long as it holds the VM; what the user wants is another matter (L-G12).
alter table vms add column hold_stops boolean not null default false;
create index vms_hold on vms (hold_token) where held;
