-- When the database's server was started, as it was last noticed, and the last pass that was drawn before: what a host has
-- seen beyond it, when it is first heard since, is unknown to this store (H-R1).
alter table fleet add column server_started_at timestamptz, add column pass_at_start bigint not null default 0;
