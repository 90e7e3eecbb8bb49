-- How much a project may have in all (S-36). `*`: a project that has no row of its own; null: no limit. The operators' own
-- project has none unless they set one.
create table project_limits (
    project text primary key,
    max_vms integer check (max_vms >= 0),
    max_vcpus integer check (max_vcpus >= 0),
    max_memory_mib bigint check (max_memory_mib >= 0),
    max_disk_gib bigint check (max_disk_gib >= 0),
    max_images integer check (max_images >= 0)
);
insert into project_limits values ('*', 100, 200, 400 << 10, 4096, 100), ('default', null, null, null, null, null),
    ('public', null, null, null, null, null);

create function limits_of_project(wanted text) returns project_limits language sql stable as $$
    select * from project_limits where project in (wanted, '*') order by project = '*' limit 1
$$;

-- What is deleted and can still be undeleted holds its disk, and nothing else.
create function held_by_project(wanted text) returns table (
    vms bigint, cpu_millicores bigint, memory_mib bigint, disk_gib bigint, images bigint
) language sql stable as $$
    select count(*) filter (where not deleted),
        coalesce(sum((spec ->> 'cpu_millicores')::bigint) filter (where not deleted), 0)::bigint,
        coalesce(sum((spec ->> 'memory_mib')::bigint) filter (where not deleted), 0)::bigint,
        coalesce(sum(v.disk_gib), 0)::bigint
            + (select coalesce(sum(size_gib), 0)::bigint from volumes where project = wanted),
        (select count(*) from images where project = wanted)
    from vms v where v.project = wanted
$$;

-- What rises is judged at the end of its transaction, whatever that did: then all other locks are held, and the one lock
-- of all that is judged there (as of the audit trail's entries) keeps two from both fitting.
create function check_project_limits() returns trigger language plpgsql as $$
declare
    was jsonb := case when tg_op = 'UPDATE' then to_jsonb(old) else '{}' end;
    becomes jsonb := to_jsonb(new);
    limits project_limits;
    held record;
    over text;
begin
    limits := limits_of_project(new.project);
    if num_nonnulls(limits.max_vms, limits.max_vcpus, limits.max_memory_mib, limits.max_disk_gib, limits.max_images) = 0 then
        return null;
    end if;
    perform pg_advisory_xact_lock(6004173);
    select * into held from held_by_project(new.project);
    over := case
        when tg_table_name = 'images' and held.images > limits.max_images
            then format('images: may have %s, and would have %s', limits.max_images, held.images)
        when tg_table_name = 'vms' and tg_op = 'INSERT' and held.vms > limits.max_vms
            then format('VMs: may have %s, and would have %s', limits.max_vms, held.vms)
        when rises(was, becomes, '{spec,cpu_millicores}') and held.cpu_millicores > limits.max_vcpus * 1000::bigint
            then format('cpu: may have %s vCPUs, and would have %s', limits.max_vcpus, trim_scale(held.cpu_millicores / 1000.0))
        when rises(was, becomes, '{spec,memory_mib}') and held.memory_mib > limits.max_memory_mib
            then format('memory: may have %s MiB, and would have %s', limits.max_memory_mib, held.memory_mib)
        when (rises(was, becomes, '{disk_gib}') or rises(was, becomes, '{size_gib}')) and held.disk_gib > limits.max_disk_gib
            then format('disk: may have %s GiB, and would have %s', limits.max_disk_gib, held.disk_gib)
    end;
    if over is not null then
        raise exception using errcode = 'configuration_limit_exceeded', message = format('the project %s is at its limit: '
            '%s; delete what it does not need, or ask an operator for more', new.project, over);
    end if;
    return null;
end
$$;

create function rises(was jsonb, becomes jsonb, path text[]) returns boolean language sql immutable as $$
    select coalesce((becomes #>> path)::bigint, 0) > coalesce((was #>> path)::bigint, 0)
$$;

create constraint trigger vms_limited after insert or update of spec, disk_gib on vms deferrable initially deferred
    for each row execute function check_project_limits();
create constraint trigger volumes_limited after insert or update of size_gib on volumes deferrable initially deferred
    for each row execute function check_project_limits();
create constraint trigger images_limited after insert on images deferrable initially deferred
    for each row execute function check_project_limits();
