-- Who holds a whole VM proves it by a token (L-G12); `held` and `held_by` are the guard that the VM's own life reads.
-- expected_by: when the work at hand, or that which begins at due_at, should be done (L-G13).
alter table vms
    add column hold_token text,
    add column held_since timestamptz,
    add column expected_by timestamptz;
