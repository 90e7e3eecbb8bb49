-- Each entry of the audit trail carries a hash over itself and the one before (S-37), in the order of commits: at the end of
-- its transaction, when all other locks are held, so that waiting for one another can make no deadlock.
create table audit_chain (
    position bigint primary key check (position > 0),
    number bigint not null unique,
    hash bytea not null check (length(hash) = 32)
);

create function audit_text(entry audit) returns text language sql stable as $$
    select jsonb_build_array(entry.number, to_char(entry.at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US'), entry.project,
        entry.actor, entry.origin, entry.action, entry.object, entry.before, entry.after)::text
$$;

create function chain_audit(entry audit) returns void language plpgsql as $$
declare
    last audit_chain;
begin
    perform pg_advisory_xact_lock(6004173);
    select * into last from audit_chain order by position desc limit 1;
    insert into audit_chain (position, number, hash) values (coalesce(last.position, 0) + 1, entry.number,
        sha256(coalesce(last.hash, ''::bytea) || convert_to(audit_text(entry), 'UTF8')));
end
$$;

create function chain_new_audit() returns trigger language plpgsql as $$
begin
    perform chain_audit(new);
    return null;
end
$$;

do $$
declare
    entry audit;
begin
    for entry in select * from audit order by number loop
        perform chain_audit(entry);
    end loop;
end
$$;

create constraint trigger audit_is_chained after insert on audit deferrable initially deferred
    for each row execute function chain_new_audit();
create trigger audit_chain_is_append_only before update or delete or truncate on audit_chain
    for each statement execute function refuse_audit_change();

-- The trigger stops whoever may; the application may not either.
revoke update, delete, truncate on audit, audit_chain from public;
do $$
begin
    execute format('revoke update, delete, truncate on audit, audit_chain from %I', current_user);
end
$$;
