-- What operators hold, for the fleet or for one host: everything that destroys, or only new VMs (H-R3). `frozen` of the
-- fleet and of its hosts says of the former what every pass reads with its row.
create table freezes (
    id text primary key,
    creates boolean not null,
    host_id text references hosts (id) on delete cascade,
    made_by text not null,
    since timestamptz not null default now()
);
create unique index freezes_one on freezes (creates, coalesce(host_id, ''));
alter table hosts add column frozen boolean not null default false;
