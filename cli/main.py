"""The command `hostler`: a client of the API. A command's module is imported when it is called, for a quick start."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from cyclopts import App, CycloptsError, Parameter

from cli.failures import Exit, Left, exit_code
from cli.output import say, say_error
from model.errors import HostlerError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Name, place and line of help: the modules themselves are not imported for a list of commands.
_COMMANDS = (
    ("up", "cli.installation:up", "Bring up everything on this machine."),
    ("down", "cli.installation:down", "Stop it; guests keep running."),
    ("status", "cli.installation:status", "Say what is up, where, and why not."),
    ("mcp", "cli.mcp:mcp", "Let an assistant use the API's tools."),
    ("doctor", "cli.doctor:doctor", "Say what is wrong, and what to do."),
    ("restore", "cli.restore:restore", "Settle what a restored database does not know."),
    ("freeze", "cli.freeze:freeze", "Hold everything destructive, or new VMs."),
    ("unfreeze", "cli.freeze:unfreeze", "End a freeze."),
    ("floor", "cli.floor:floor", "Show or set the least release of a host worker."),
    ("replay", "cli.processes:replay", "Replay a VM's runs against this release's code."),
    ("api", "cli.processes:api", "Become the API of a larger installation."),
)
_VM_COMMANDS = (
    ("create", "cli.vm_create:create", "Make a VM."),
    ("ls", "cli.vm:ls", "List VMs."),
    ("show", "cli.vm:show", "Show a VM."),
    ("start", "cli.vm_change:start", "Start a VM that is stopped."),
    ("stop", "cli.vm_change:stop", "Stop a VM; it stays stopped."),
    ("pause", "cli.vm_change:pause", "Pause a VM."),
    ("resume", "cli.vm_change:resume", "Let a paused VM go on."),
    ("restart", "cli.vm_change:restart", "Stop and start a VM once."),
    ("retry", "cli.vm_change:retry", "Try again, at once, what failed."),
    ("rebuild", "cli.vm_change:rebuild", "Make a VM's root disk anew, or undo that."),
    ("resize", "cli.vm_change:resize", "Change a VM's processors, memory or disk."),
    ("attach", "cli.vm_change:attach", "Attach a volume to a VM."),
    ("detach", "cli.vm_change:detach", "Detach a volume from a VM; its data stays."),
    ("firewall", "cli.vm_firewall:firewall", "Show or change what a VM's firewall lets through."),
    ("protect", "cli.vm_change:protect", "Refuse to delete or rebuild a VM."),
    ("unprotect", "cli.vm_change:unprotect", "Let a VM be deleted and rebuilt again."),
    ("rm", "cli.vm_change:rm", "Delete a VM; it can be undeleted for a while."),
    ("undelete", "cli.vm_change:undelete", "Bring a deleted VM back."),
    ("ssh", "cli.vm_ssh:ssh", "Log in to a VM, or run a command there."),
    ("why", "cli.vm:why", "Say what a VM waits for, and what to do."),
    ("wait", "cli.vm:wait", "Wait until nothing is left to do for a VM."),
    ("console", "cli.vm:console", "Print the end of a VM's console log."),
)
_HOST_COMMANDS = (
    ("ls", "cli.host:ls", "List hosts."),
    ("show", "cli.host:show", "Show a host and what it holds."),
    ("add", "cli.host_join:add", "Add a host, and print what it joins with."),
    ("replace", "cli.host_join:replace", "Let a machine take a host's place."),
    ("revoke", "cli.host_join:revoke", "End a host's credential; its guests run on."),
    ("cordon", "cli.host:cordon", "Let no new VM come to a host."),
    ("maintenance", "cli.host:maintenance", "Expect a host to be silent for a while."),
    ("uncordon", "cli.host:uncordon", "Let new VMs come to a host again."),
    ("foreign", "cli.host_foreign:foreign", "List what a host holds without a row."),
    ("adopt", "cli.host_foreign:adopt", "Make a row of such a VM; it goes on as it is."),
    ("quarantine", "cli.host_foreign:quarantine", "Stop such a VM, and keep it."),
    ("leave", "cli.host_foreign:leave", "Leave such a VM as it is."),
    ("label", "cli.host:label", "Label a host, for VMs that ask for a labelled one."),
    ("policy", "cli.host_sets:policy", "Show or set the images that a host keeps."),
    ("sets", "cli.host_sets:sets", "Show or replace what else is wanted of a host."),
    ("forget", "cli.host_forget:forget", "Give up a host that is dead, with the VMs on it."),
    ("drain", "cli.drain:drain", "Stop a host's VMs, or leave them; no new ones come."),
    ("undrain", "cli.drain:undrain", "End a drain; its VMs come back."),
    ("rm", "cli.drain:rm", "Remove a host that is drained and empty."),
)
_ROLL_COMMANDS = (
    ("start", "cli.roll:start", "Restart VMs, some at a time."),
    ("ls", "cli.roll:ls", "List rolling restarts."),
    ("show", "cli.roll:show", "Show how far one is, and what failed."),
    ("wait", "cli.roll:wait", "Follow one until it is over."),
    ("pause", "cli.roll:pause", "Begin no more restarts for now."),
    ("resume", "cli.roll:resume", "Go on with one that paused."),
    ("cancel", "cli.roll:cancel", "Begin no more restarts at all."),
)
_IMAGE_COMMANDS = (
    ("add", "cli.image:add", "Name an image."),
    ("ls", "cli.image:ls", "List images."),
)
_VOLUME_COMMANDS = (
    ("create", "cli.volume:create", "Make a volume."),
    ("ls", "cli.volume:ls", "List volumes."),
    ("show", "cli.volume:show", "Show a volume."),
    ("resize", "cli.volume:resize", "Make a volume larger."),
    ("rm", "cli.volume:rm", "Delete a volume; it can be undeleted for a while."),
    ("undelete", "cli.volume:undelete", "Bring a deleted volume back."),
    ("foreign", "cli.volume:foreign", "List what a host holds without a row."),
    ("adopt", "cli.volume:adopt", "Make a row of such a volume."),
)
_TOKEN_COMMANDS = (
    ("create", "cli.token:create", "Make a token, with no more rights than yours."),
    ("ls", "cli.token:ls", "List tokens."),
    ("revoke", "cli.token:revoke", "End a token at once."),
)
_PROJECT_COMMANDS = (
    ("ls", "cli.project:ls", "List projects: what each has, and may have."),
    ("limit", "cli.project:limit", "Say how much a project may have."),
)
_AUDIT_COMMANDS = (
    ("ls", "cli.audit:ls", "List who changed what."),
    ("check", "cli.audit:check", "Check that the audit trail is what was written."),
)
_UPGRADE_COMMANDS = (("check", "cli.upgrade:check", "Name what is in the way."),)
_SSH_CA_COMMANDS = (("show", "cli.ssh_ca:show", "Print what VMs' host certificates are checked by."),)
_WORKER_COMMANDS = (
    ("control", "cli.processes:control", "Become a control worker."),
    ("gateway", "cli.processes:gateway", "Become the gateway of hosts."),
    ("host", "cli.processes:host", "Become this machine's host worker."),
)
_GROUPS = (
    ("vm", "Make, change, look at, log in to and delete VMs.", _VM_COMMANDS),
    ("host", "Add hosts, look at them, cordon and drain them.", _HOST_COMMANDS),
    ("roll", "Restart VMs one batch after the other.", _ROLL_COMMANDS),
    ("image", "Name images and list them.", _IMAGE_COMMANDS),
    ("volume", "Make, grow and delete disks that outlive their VMs.", _VOLUME_COMMANDS),
    ("token", "Make and end the tokens that the API is called with.", _TOKEN_COMMANDS),
    ("project", "Look at projects, and limit what they may have.", _PROJECT_COMMANDS),
    ("audit", "Look at who changed what, and check the record of it.", _AUDIT_COMMANDS),
    ("ssh-ca", "Show the authority of VMs' host certificates.", _SSH_CA_COMMANDS),
    ("upgrade", "Look what an upgrade has still to do.", _UPGRADE_COMMANDS),
    ("worker", "Become a worker of a larger installation.", _WORKER_COMMANDS),
)
_EPILOGUE = (
    "HOSTLER_URL and HOSTLER_TOKEN name the API and the token; else this machine's installation in HOSTLER_HOME. "
    "Exit codes: 0 done, 1 refused or failed, 2 called wrongly, 3 not reachable, 4 wait timed out, 130 Ctrl-C."
)


# What people type who come from elsewhere: "delete" must not be answered with "did you mean undelete?".
_ALSO_CALLED = {"delete": "rm", "remove": "rm", "list": "ls"}


def make_app() -> App:
    """Put the commands together."""
    app = App(
        name="hostler",
        help="Keep virtual machines as you said, on machines that you run.",
        help_epilogue=_EPILOGUE,
        help_format="plaintext",
        version=find_version,
        default_parameter=Parameter(negative=(), show_default=False),
        result_action="return_value",
    )
    for name, place, words in _COMMANDS:
        app.command(place, name=name, help=words)
    for group_name, group_words, commands in _GROUPS:
        group = App(name=group_name, help=group_words)
        for name, place, words in commands:
            group.command(place, name=name, help=words)
        app.command(group)
    return app


def run(words: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    words = list(words)
    if len(words) > 1 and words[0] in {name for name, *_ in _GROUPS}:
        words[1] = _ALSO_CALLED.get(words[1], words[1])
    if words[:2] == ["vm", "ssh"]:
        from cli.vm_ssh import mark_command

        words = [*words[:2], *mark_command(words[2:])]
    as_json = "--json" in words
    try:
        make_app()(words, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        say_lines(f"error: {error}")
        return Exit.USAGE
    except HostlerError as error:
        say_error(error, as_json=as_json)
        return exit_code(error)
    except Left as left:
        say(left.hint)
        return Exit.LEFT
    except KeyboardInterrupt:
        say("left")
        return Exit.LEFT
    return Exit.DONE


def say_lines(text: str) -> None:
    for line in text.splitlines():
        say(line)


def find_version() -> str:
    """Return this release's version."""
    from model.versions import VERSION

    return VERSION


def main() -> None:
    """Run the command line and end with its exit code."""
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read us has gone, as `head` does. Nothing more can be said, not even at the interpreter's end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = Exit.FAILED
    sys.exit(code)
