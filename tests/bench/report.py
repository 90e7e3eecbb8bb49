"""What the benchmark found, as tables for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench.bare import Boot
from tests.bench.created import Created
from tests.bench.statistics import (
    AIM,
    LIMIT,
    Summary,
    find_paired_ratios,
    find_ratio,
    judge,
    summarise,
    summarise_by_name,
)

PARTS = ("until_process", "process_to_banner", "process_worked")
WORDS = {"met": "the aim is met", "missed": "the aim is missed", "failed": "over the limit"}


@dataclass(frozen=True)
class Round:
    """One bare boot and one by Hostler. load: the machine's load average of the last minute at the round's begin."""

    bare: Boot
    hostler: Created
    load: float


def find_steps(created: Created) -> dict[str, dict[str, float]]:
    """Name each step of a create with its parts in seconds; a step that comes twice is numbered."""
    found: dict[str, dict[str, float]] = {}
    for step in created.timeline.steps:
        name = step.name
        while name in found:
            name += " again"
        found[name] = {
            "at": step.scheduled - created.sent,
            "queued": step.started - step.scheduled,
            "worked": step.completed - step.started,
            "until_next": step.until_next,
        }
    return found


def build_document(rounds: Sequence[Round], about: dict[str, Any]) -> dict[str, Any]:
    """Put everything that was measured into one JSON document; times in seconds."""
    bare, hostler = [r.bare.seconds for r in rounds], [r.hostler.boot.seconds for r in rounds]
    ratio = find_ratio(bare, hostler)
    steps = [find_steps(r.hostler) for r in rounds]
    names = dict.fromkeys(name for each in steps for name in each)
    throttled = [r.hostler.throttled for r in rounds if r.hostler.throttled is not None]
    return {
        **about,
        "bare_seconds": asdict(summarise(bare)),
        "hostler_seconds": asdict(summarise(hostler)),
        "ratio": ratio,
        "ratio_within_a_round": asdict(find_paired_ratios(bare, hostler)),
        "aim": AIM,
        "limit": LIMIT,
        "verdict": judge(ratio),
        "until_process_seconds": {
            "bare": asdict(summarise([r.bare.until_process for r in rounds])),
            "hostler": asdict(summarise([r.hostler.boot.until_process for r in rounds])),
        },
        "process_to_banner_seconds": {
            "bare": asdict(summarise([r.bare.seconds - r.bare.until_process for r in rounds])),
            "hostler": asdict(summarise([r.hostler.boot.seconds - r.hostler.boot.until_process for r in rounds])),
        },
        "process_worked_seconds": {
            "bare": asdict(summarise([r.bare.process_worked for r in rounds])),
            "hostler": asdict(summarise([r.hostler.boot.process_worked for r in rounds])),
        },
        "throttled_seconds": asdict(summarise(throttled)) if throttled else None,
        "stages": {name: asdict(s) for name, s in summarise_by_name([r.hostler.stages for r in rounds]).items()},
        "steps": {
            name: {part: asdict(s) for part, s in summarise_by_name([e[name] for e in steps if name in e]).items()}
            for name in names
        },
        "rounds": [{"bare": asdict(r.bare), "hostler": asdict(r.hostler.boot), "load": r.load} for r in rounds],
    }


def show(document: dict[str, Any], console: Console) -> None:
    """Print the tables of a document."""
    console.print(build_totals(document))
    console.print(build_stages(document))
    console.print(build_steps(document))
    ratio, within = document["ratio"], Summary(**document["ratio_within_a_round"])
    console.print(
        f"ratio of the medians [bold]{ratio:.2f}[/bold] "
        f"(within a round {within.lowest:.2f} to {within.highest:.2f}, median {within.median:.2f}); "
        f"aim {AIM}, limit {LIMIT}: [bold]{WORDS[document['verdict']]}[/bold]"
    )


def build_totals(document: dict[str, Any]) -> Table:
    table = Table(title=f"to the SSH banner, seconds, {document['bare_seconds']['count']} rounds", title_justify="left")
    table.add_column("")
    for name in ("median", "lowest", "highest", "to process", "process to banner", "process on CPU"):
        table.add_column(name, justify="right")
    for who, label in (("bare", "bare QEMU start"), ("hostler", "POST /v1/vms")):
        total = document[f"{who}_seconds"]
        parts = [document[f"{name}_seconds"][who]["median"] for name in PARTS]
        values = [total["median"], total["lowest"], total["highest"], *parts]
        table.add_row(label, *(f"{value:.3f}" for value in values))
    return table


def build_stages(document: dict[str, Any]) -> Table:
    table = Table(title="since the request, milliseconds", title_justify="left")
    table.add_column("")
    for name in ("median", "lowest", "highest"):
        table.add_column(name, justify="right")
    stages = sorted(document["stages"].items(), key=lambda stage: stage[1]["median"])
    for name, found in stages:
        table.add_row(name, *(in_milliseconds(found[part]) for part in ("median", "lowest", "highest")))
    if document["throttled_seconds"] is not None:
        found = document["throttled_seconds"]
        held = (in_milliseconds(found[part]) for part in ("median", "lowest", "highest"))
        table.add_row("(of it the guest was held back by its CPU quota)", *held)
    return table


def build_steps(document: dict[str, Any]) -> Table:
    table = Table(title="steps of the create's run, medians in milliseconds", title_justify="left")
    table.add_column("step")
    parts = {"at": "begins at", "queued": "in the queue", "worked": "on the host", "until_next": "until the next"}
    for label in parts.values():
        table.add_column(label, justify="right")
    for name, found in document["steps"].items():
        table.add_row(name, *(in_milliseconds(found[part]["median"]) for part in parts))
    sums = [sum(step[part]["median"] for step in document["steps"].values()) for part in list(parts)[1:]]
    table.add_section()
    table.add_row("all", "", *(in_milliseconds(value) for value in sums))
    return table


def in_milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f}"
