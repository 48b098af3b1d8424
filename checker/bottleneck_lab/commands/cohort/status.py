"""`lab cohort status`: the room in a terminal."""

from __future__ import annotations

from pathlib import Path

import typer

from bottleneck_lab.cohort.folder import open_cohort
from bottleneck_lab.cohort.moments import spoken
from bottleneck_lab.cohort.view.room import Room, load_room
from bottleneck_lab.cohort.view.verdicts import verdict_reader_of
from bottleneck_lab.commands.cohort.options import Folder
from bottleneck_lab.commands.ui import Json, print_json, say
from bottleneck_lab.errors import ExitCode
from bottleneck_lab.wording import counted

EXAMPLE = "lab cohort status --folder autumn-workshop"


def command(folder: Folder = Path(), json: Json = False) -> None:
    """Show how many have joined, the queue, runners, who asks for help and who is stuck.

    Exit code 4 if a record in the database differs from what the cohort's key signed.
    """
    with open_cohort(folder) as cohort, cohort.database.reading() as connection:
        room = load_room(connection, verdict_reader_of(cohort.public_key), cohort.database.clock())
    if json:
        print_json(room)
    else:
        _print_room(cohort.config.name, room)
    if room.altered:
        raise typer.Exit(ExitCode.ERROR)


def _print_room(name: str, room: Room) -> None:
    states = room.states
    learners = counted(len(room.rows), "learner")
    joined = "" if room.joined == len(room.rows) else f", {room.joined} joined"
    say(
        f"{name}: {learners}{joined}, {counted(room.passed, 'lab passed', 'labs passed')}",
        style="bold",
    )
    say(
        f"{states.get('queued', 0)} waiting, {states.get('running', 0)} being measured,"
        f" {states.get('done', 0)} measured, {states.get('failed', 0)} set aside"
    )
    for record in room.altered:
        say(
            f"ALTERED: {record.name}'s submission {record.submission} in {record.lab}."
            f" {record.problem} {record.remedy}",
            style="red",
        )
    for row in room.asking_for_help:
        since = spoken(row.needs_help or 0.0, room.settings.timezone)
        say(f"needs help: {row.name}, since {since}. {row.help_text}".rstrip())
    if room.settings.paused:
        say("Paused: no checks are being started.", style="yellow")
    for sentence in room.stranded:
        say(sentence, style="yellow")
    for runner in room.runners:
        if not runner.alive(room.now):
            say(f"runner {runner.name} ({runner.executor}): not responding", style="red")
            continue
        busy = sum(slot.busy is not None for slot in runner.slots)
        user = f"; user: {runner.health['user']}" if "user" in runner.health else ""
        say(
            f"runner {runner.name} ({runner.executor}): {busy} of {len(runner.slots)} slots"
            f" busy{user}"
        )
    for row in room.stuck:
        say(
            f"stuck: {row.name} in {row.lab}, {row.failed} failed since the last progress,"
            f" {row.idle_min:.0f} min ago"
        )
