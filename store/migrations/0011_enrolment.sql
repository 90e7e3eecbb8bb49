-- A host joins by a token that is traded once for a credential of its own (H-E1, S-40). Of token and credential only the
-- SHA-256 of the random part is kept. traded_for: the credential's, so that a host which lost the answer may ask again.
create table join_tokens (
    id text primary key,
    hash bytea not null check (length(hash) = 32),
    host_id text not null references hosts (id) on delete cascade,
    maker text not null,
    created_at timestamptz not null default now(),
    expires_at timestamptz not null,
    revoked_at timestamptz,
    used_at timestamptz,
    traded_for bytea,
    constraint join_tokens_used check ((used_at is null) = (traded_for is null))
);
create index join_tokens_of_host on join_tokens (host_id);

-- credential_until: null on hosts of an earlier release until they renew. former_credential_hash: the one before a
-- renewal, good until the new one is used for the first time.
alter table hosts
    alter column credential_hash drop not null,
    add column credential_until timestamptz,
    add column credential_revoked_at timestamptz,
    add column former_credential_hash bytea,
    add constraint hosts_former_credential_key unique (former_credential_hash);
