-- A host in maintenance is expected to be silent until then (H-E2). It is still shown as silent; but it says nothing of
-- whether the control plane sees, where many fall silent at once (H-S10).
alter table hosts add column maintenance_until timestamptz,
    add constraint hosts_maintenance check (status <> 'maintenance' or maintenance_until is not null);

create function silence_is_expected(h hosts) returns boolean language sql stable as $$
    select h.status = 'maintenance' and h.maintenance_until > now()
$$;

create or replace function host_is_silent(h hosts) returns boolean language sql stable as $$
    select case
        when h.last_report_at is null then true
        when f.heard_at is null or f.heard_at < now() - interval '30 seconds' then false
        when greatest(h.last_report_at, f.hearing_since) >= now() - f.host_silent_after then false
        else not (
            select count(*) >= 3 and count(*) < 2 * count(*) filter (where
                greatest(o.last_report_at, f.hearing_since) < now() - f.host_silent_after
                and o.last_report_at between h.last_report_at - interval '30 seconds'
                                         and h.last_report_at + interval '30 seconds')
            from hosts o where o.last_report_at is not null and o.status <> 'forgotten' and not silence_is_expected(o))
        end
    from fleet f
$$;
