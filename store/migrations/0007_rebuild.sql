-- A rebuild puts the root disk aside (L-V10). Desired: until when it is kept, what it was made from, and which rebuild
-- put it there; `undo_of` names the rebuild whose kept disk is wanted back. Status: the last rebuild told as done.
alter table vms
    add column kept_by bigint not null default 0,
    add column undo_of bigint,
    add column old_disk_until timestamptz,
    add column old_image jsonb,
    add column old_secrets bytea,
    add column applied_rebuild_generation bigint not null default 0;
