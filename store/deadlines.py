"""The deadline of a VM's work, in SQL (L-G13): stored before the work begins, gone when it ends or waits by right."""

from __future__ import annotations

from datetime import timedelta

from model.deadlines import EXPECTED, RIGHTFUL
from model.passes import PassType


def _interval(kind: PassType) -> str:
    return f"interval '{EXPECTED[kind] // timedelta(seconds=1)} seconds'"


CREATE_TIME = _interval("CreateVm")
DESTROY_TIME = _interval("ReapVm")
LIVE_TIME = f"case when first_ready_at is null then {CREATE_TIME} else {_interval('ConvergeVm')} end"
# What the row calls for now, as `model.decide.pass_type` says it.
WORK_TIME = f"case when deleted then {DESTROY_TIME} else {LIVE_TIME} end"
# Work that goes on keeps its deadline, however often it is begun anew.
EXPECT = f"expected_by = coalesce(expected_by, now() + {WORK_TIME})"
RIGHTFUL_WORDS = ", ".join(f"'{word.value}'" for word in sorted(RIGHTFUL))
OVERDUE = f"""coalesce(v.expected_by < now() and not v.held
    and (v.waiting_for is null or v.waiting_for not in ({RIGHTFUL_WORDS})), false)"""
