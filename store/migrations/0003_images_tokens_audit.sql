-- Images belong to a project; those of the operators to `public` (S-19). Whole URLs are kept sealed (S-33).
create table images (
    id text primary key,
    project text not null,
    name text not null,
    content jsonb not null,
    secrets bytea not null,
    created_at timestamptz not null default now(),
    constraint images_name_key unique (project, name)
);

-- A token without a project reaches all of them. Only the SHA-256 of its random part is kept (S-30).
create table tokens (
    id text primary key,
    hash bytea not null check (length(hash) = 32),
    role text not null check (role in ('admin', 'operator', 'viewer')),
    project text,
    name text not null default '',
    maker text,
    created_at timestamptz not null default now(),
    expires_at timestamptz not null,
    last_used_at timestamptz,
    revoked_at timestamptz,
    constraint tokens_project_admin check (project is null or role <> 'admin')
);

create table idempotency (
    project text not null,
    token_id text not null,
    key text not null,
    request_digest text not null,
    status integer,
    answer jsonb,
    at timestamptz not null default now(),
    primary key (project, token_id, key)
);
create index idempotency_at on idempotency (at);

create table audit (
    number bigint generated always as identity primary key,
    at timestamptz not null default now(),
    project text not null,
    actor text not null,
    origin text,
    action text not null,
    object text not null,
    before jsonb,
    after jsonb
);
create index audit_of_object on audit (project, object, number desc);

create function refuse_audit_change() returns trigger language plpgsql as $$
begin
    raise exception 'the audit trail is append-only';
end
$$;
create trigger audit_is_append_only before update or delete or truncate on audit
    for each statement execute function refuse_audit_change();
