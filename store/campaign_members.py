"""How each VM of a campaign stands, in SQL: read from its own row, whoever wrote that (H-D1, H-D3)."""

from __future__ import annotations

from model.campaign import CampaignKind
from store.deadlines import OVERDUE, RIGHTFUL_WORDS

# A create in flight. One that rests, or waits by right, is none; nor is one that takes far longer than it should.
_CREATING = f"""(v.first_ready_at is null and not v.resting and not ({OVERDUE})
    and (v.waiting_for is null or v.waiting_for not in ({RIGHTFUL_WORDS})))"""
_STOPPED = "(v.unreadable is null and coalesce(v.observed_power_state, 'stopped') = 'stopped')"

# A pass has looked since the hold was taken where `waiting_for` is `hold`: the guest is stopped, or nobody can stop it.
_DRAIN = f"""
select v.id as vm_id, v.name,
    case
        when v.hold_token = c.id and v.deleted then 'deleted'
        when v.held and v.hold_token is distinct from c.id then 'failed'
        when not v.held and {_CREATING} then 'creating'
        when c.policy = 'leave' then 'left'
        when not v.held then 'todo'
        when {_STOPPED} and (v.waiting_for = 'hold' or m.vm_id is not null) then 'done'
        when v.failures > 0 or v.unreadable is not null or v.waiting_for = 'hold' then 'failed'
        else 'working'
    end as state,
    case
        when v.held and v.hold_token is distinct from c.id
            then 'it is held by ' || coalesce(v.held_by, 'another operation')
        else coalesce(v.unreadable, case when v.failures > 0 then v.last_error end, 'its guest could not be stopped')
    end as why
from campaigns c join vms v on v.host_id = c.host_id and (not v.deleted or v.hold_token = c.id)
    left join campaign_vms m on m.campaign_id = c.id and m.vm_id = v.id
where c.id = $1 and c.state <> 'cancelled'
order by v.id"""

_ROLL = f"""
select m.vm_id, coalesce(v.name, m.vm_id) as name,
    case
        when v.id is null or v.deleted or m.skipped is not null then 'left'
        when m.operation_id is null then 'todo'
        when o.result = 'settled' then 'done'
        when o.result in ('superseded', 'gone') then 'left'
        when o.result = 'failed' or v.phase = 'failed' or {OVERDUE} then 'failed'
        else 'working'
    end as state,
    coalesce(v.last_error, 'it is not back in time') as why
from campaign_vms m left join vms v on v.id = m.vm_id left join operations o on o.id = m.operation_id
where m.campaign_id = $1
order by m.vm_id"""

MEMBERS: dict[CampaignKind, str] = {"drain": _DRAIN, "roll": _ROLL}
