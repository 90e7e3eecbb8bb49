-- One sequence for the whole fleet, so that no pass number is ever used twice, not even by a later VM (L-G5).
create sequence pass;

create table fleet (
    only_one boolean primary key default true check (only_one),
    id text not null,
    epoch bigint not null default 1 check (epoch >= 1),
    frozen boolean not null default false,
    behind boolean not null default false,
    min_worker_version text,
    max_create_attempts integer not null default 5 check (max_create_attempts >= 1),
    host_silent_after interval not null default interval '90 seconds',
    -- Which database this is: another one under the same fleet means that it was restored or copied (H-R1).
    system_identifier text not null,
    timeline integer not null,
    -- The API says here that it can hear. hearing_since: without a gap since then (H-S10).
    heard_at timestamptz,
    hearing_since timestamptz,
    created_at timestamptz not null default now()
);

create table hosts (
    id text primary key,
    name text not null,
    labels jsonb not null default '{}',
    status text not null default 'joining' check (status in
        ('joining', 'ready', 'cordoned', 'draining', 'drained', 'maintenance', 'forgotten')),
    credential_hash bytea not null,
    key_version integer not null default 1,
    instance_id text,
    machine_id text,
    boot_id text,
    worker_version text,
    activity_names text[] not null default '{}',
    report jsonb,
    report_number bigint not null default 0,
    last_report_at timestamptz,
    last_whole_at timestamptz,
    state_lost_at timestamptz,
    rolled_back_at timestamptz,
    -- What the host holds although no row places it there: shown, left alone.
    foreign_vms jsonb not null default '[]',
    joined_at timestamptz not null default now(),
    wake bigint not null default 0,
    due_at timestamptz,
    constraint hosts_name_key unique (name),
    constraint hosts_credential_key unique (credential_hash)
);
create index hosts_due on hosts (due_at) where due_at is not null;

-- H-S10, computed whenever a row is read. A host that has never reported cannot be sent anything. While nobody can
-- hear, nobody is silent; where three hosts or more exist and over half stopped within half a minute of each other,
-- it is the control plane that does not see.
create function host_is_silent(h hosts) returns boolean language sql stable as $$
    select case
        when h.last_report_at is null then true
        when f.heard_at is null or f.heard_at < now() - interval '30 seconds' then false
        when greatest(h.last_report_at, f.hearing_since) >= now() - f.host_silent_after then false
        else not (
            select count(*) >= 3 and count(*) < 2 * count(*) filter (where
                greatest(o.last_report_at, f.hearing_since) < now() - f.host_silent_after
                and o.last_report_at between h.last_report_at - interval '30 seconds'
                                         and h.last_report_at + interval '30 seconds')
            from hosts o where o.last_report_at is not null and o.status <> 'forgotten')
        end
    from fleet f
$$;
