-- Status: what befell the guest since it ran for long, or since its user's start (L-V4, L-V11). `setbacks` is null until
-- a pass has seen which is the last from before that; `setback` is the last one that was counted.
alter table vms
    add column setbacks integer default 0,
    add column setback jsonb,
    add column up_again_at timestamptz;
-- The guest's own power-off that the API took last, whatever it made of it.
alter table vms add column poweroff_taken jsonb;
-- Refunds without progress: of each step of the create in which an attempt was given back, how often its host had died.
alter table vms add column step_refunds jsonb not null default '{}';
-- `given_back_pass` names the attempt that is settled: given back, or used up by an end of its own.
update vms set given_back_pass = attempt_pass where attempt_pass = ended_pass;
