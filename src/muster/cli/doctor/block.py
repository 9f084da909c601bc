"""`muster doctor block` and `unblock`: stop one account at the API server, for a time."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from muster.api.names import SYSTEM_NAMESPACE
from muster.cli.errors import BadInput, CliError, ExitCode
from muster.cli.names import finite, not_empty
from muster.cli.output import duration, note, output_option, print_data, print_table, say, say_command
from muster.cli.target import Target, cluster_options, resolve

if TYPE_CHECKING:
    from muster.cli.target import Cluster
    from muster.doctor.block.account import Account
    from muster.doctor.block.block import Block
    from muster.doctor.block.blocking import Blocking
    from muster.doctor.block.escapes import Escape

_DEADLINE_S: Final = 60.0
_FOR_MOST_S: Final = 7 * 24 * 3600.0
_LENGTH: Final = re.compile(r"(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?")


def _length(context: click.Context, parameter: click.Parameter, text: str) -> float:
    """Read a length of time, such as 1h, 90m or 1h30m, in seconds."""
    match = _LENGTH.fullmatch(text)
    hours, minutes, seconds = (int(part or 0) for part in (match.groups() if match else (0, 0, 0)))
    length = hours * 3600.0 + minutes * 60 + seconds
    if not 0 < length <= _FOR_MOST_S:
        raise BadInput(f"{text!r} is not a length of time from 1s to 168h", "write, for example, --for 1h or --for 90m")
    return length


def _service_account(context: click.Context, parameter: click.Parameter, text: str) -> str:
    """Refuse what cannot be the name of a service account."""
    from muster.doctor.block.account import Account, AccountError

    not_empty(context, parameter, text)
    if text:
        try:
            Account.parse(text, "default")
        except AccountError as error:
            raise BadInput(str(error)) from error
    return text


_user_option = click.option("--user", default="", metavar="NAME", help="A user instead of a service account.")
_timeout_option = click.option(
    "--timeout",
    "deadline_s",
    type=click.FloatRange(1.0, 3600.0),
    callback=finite,
    default=_DEADLINE_S,
    show_default=True,
    metavar="SECONDS",
    help="How long requests are retried while the API server is saturated.",
)


@click.command("block")
@click.argument("account", metavar="[SERVICEACCOUNT]", default="", callback=_service_account)
@_user_option
@click.option("--for", "seconds", default="1h", show_default=True, callback=_length, help="How long the block lasts.")
@click.option("--force", is_flag=True, help="Also a protected or unknown account, or without a controller.")
@click.option("--install", is_flag=True, help="Create or correct the priority level if the chart did not.")
@click.option("--wait", is_flag=True, help="Stay, and remove the block at its end, at Ctrl-C or at SIGTERM.")
@click.option("--list", "listing", is_flag=True, help="List the blocks instead, also those that are overdue.")
@_timeout_option
@output_option("json", "yaml")
@cluster_options()
def block_command(
    account: str,
    user: str,
    seconds: float,
    force: bool,
    install: bool,
    wait: bool,
    listing: bool,
    deadline_s: float,
    output: str,
    target: Target,
) -> int:
    """Stop one account at the API server: its requests get 429 until the block ends, all but one at a time.

    SERVICEACCOUNT is NAMESPACE/NAME, or NAME in the current namespace. The controller removes the block when it
    ends, if the chart has doctor.breakGlass.enabled; --wait does it without a controller. A second call changes when
    the block ends.

    Exit status: 0 when the account is blocked, 1 if it could not be blocked or unblocked, 2 for bad input.
    """
    cluster = resolve(target)
    if listing:
        if account or user or force or install or wait:
            raise BadInput("--list stands alone", "leave out the account and the other options")
        return asyncio.run(_list(cluster, deadline_s, output))
    chosen = _account(account, user, cluster.namespace)
    return asyncio.run(_block(cluster, chosen, seconds, force, install, wait, deadline_s, output))


@click.command("unblock")
@click.argument("account", metavar="[SERVICEACCOUNT]", default="", callback=_service_account)
@_user_option
@_timeout_option
@output_option("json", "yaml")
@cluster_options()
def unblock_command(account: str, user: str, deadline_s: float, output: str, target: Target) -> int:
    """Remove the block of an account.

    Exit status: 0 if the account is not blocked any more, 1 if that is not certain.
    """
    cluster = resolve(target)
    return asyncio.run(_unblock(cluster, _account(account, user, cluster.namespace), deadline_s, output))


def _account(text: str, user: str, namespace: str) -> Account:
    from muster.doctor.block.account import Account, AccountError

    if bool(text) == bool(user):
        raise BadInput("name one account", "write NAMESPACE/NAME of a service account, or --user NAME")
    try:
        return Account.of_user(user) if user else Account.parse(text, namespace)
    except AccountError as error:
        raise BadInput(str(error)) from error


@contextlib.asynccontextmanager
async def _opened(cluster: Cluster, deadline_s: float) -> AsyncIterator[Blocking]:
    from muster.doctor.block.blocking import REQUEST_S, BlockError, Blocking
    from muster.kube.client import Client

    async with Client(
        cluster.config, user_agent="muster-doctor", timeout_s=min(REQUEST_S, deadline_s), retry_for_s=0
    ) as client:
        try:
            yield Blocking(client, deadline_s=deadline_s)
        except BlockError as error:
            raise CliError(str(error), error.hint) from error


async def _block(
    cluster: Cluster,
    account: Account,
    seconds: float,
    force: bool,
    install: bool,
    wait: bool,
    deadline_s: float,
    output: str,
) -> int:
    from muster.doctor.block.blocking import check, check_level
    from muster.doctor.block.escapes import escapes

    async with _opened(cluster, deadline_s) as blocking:
        ready = await blocking.ready(account)
        if not force:
            check(account, ready, frozenset({SYSTEM_NAMESPACE}))
            if not (wait or ready.removed_by_controller):
                raise CliError(
                    "no controller of this cluster removes blocks that have ended",
                    "add --wait to stay until then, or --force and remove it with `muster doctor unblock`",
                )
        if install:
            await blocking.install(ready.level)
        else:
            check_level(ready.level)
        with _stopped() if wait else contextlib.nullcontext(asyncio.Event()) as stopped:
            uid = ""
            try:
                block = await blocking.block(account, seconds)
                uid = block.uid
                applied = await blocking.applied(block)
                left = escapes(account, *(await blocking.surroundings()))
                _print_block(account, block, applied, left, output)
                if wait:
                    note(f"waiting for {duration(seconds)}; Ctrl-C ends the block now")
                    await _until_end(blocking, block, seconds, stopped)
            finally:
                if wait:
                    await blocking.unblock(account.object_name, uid)
                    note(f"{account.shown} is not blocked any more")
    return ExitCode.DONE


@contextlib.contextmanager
def _stopped() -> Iterator[asyncio.Event]:
    """An event that is set by SIGINT, SIGTERM and SIGHUP, which do not end the process then."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for each in signals:
        loop.add_signal_handler(each, stopped.set)
    try:
        yield stopped
    finally:
        for each in signals:
            loop.remove_signal_handler(each)


async def _until_end(blocking: Blocking, block: Block, seconds: float, stopped: asyncio.Event) -> None:
    """Wait until the block ends, also if it is prolonged by another call, or until the process is stopped."""
    while seconds > 0:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await stopped.wait()
        if stopped.is_set():
            return
        current = await blocking.current(block.object_name)
        if current is None or current.uid != block.uid:
            return
        seconds, block = current.expires_at - block.expires_at, current


async def _unblock(cluster: Cluster, account: Account, deadline_s: float, output: str) -> int:
    async with _opened(cluster, deadline_s) as blocking:
        was_blocked = await blocking.unblock(account.object_name)
    if output:
        print_data({"account": account.user, "wasBlocked": was_blocked}, output)
    else:
        say(f"{account.shown} {'is not blocked any more' if was_blocked else 'was not blocked'}.")
    return ExitCode.DONE


async def _list(cluster: Cluster, deadline_s: float, output: str) -> int:
    from muster.doctor.block.escapes import rejected

    async with _opened(cluster, deadline_s) as blocking:
        blocks, now = await blocking.blocks()
        _, page = await blocking.surroundings() if blocks else ((), None)
    now = now or datetime.now(UTC).timestamp()
    rows = [
        {
            "account": block.account.user if block.account is not None else "",
            "flowSchema": block.object_name,
            "expiresAt": _moment(block.expires_at),
            "overdue": block.expires_at <= now,
            "rejected": rejected(block.object_name, page),
        }
        for block in sorted(blocks, key=lambda each: each.expires_at)
    ]
    if output:
        print_data(rows, output)
        return ExitCode.DONE
    if not rows:
        say("No account is blocked.")
        return ExitCode.DONE
    table = [(block, row) for block, row in zip(sorted(blocks, key=lambda each: each.expires_at), rows, strict=True)]
    print_table(
        ("ACCOUNT", "ENDS", "REJECTED"),
        [
            (
                str(row["account"] or block.object_name),
                f"overdue for {duration(now - block.expires_at)}"
                if row["overdue"]
                else f"in {duration(block.expires_at - now)}",
                "-" if row["rejected"] is None else f"{row['rejected']:.0f}",
            )
            for block, row in table
        ],
    )
    if any(row["overdue"] for row in rows):
        say("An overdue block stays until it is removed: no controller does it here. Remove it:")
        say_command("muster doctor unblock NAMESPACE/NAME")
    return ExitCode.DONE


def _print_block(account: Account, block: Block, applied: bool, left: list[Escape], output: str) -> None:
    if output:
        from msgspec import to_builtins

        data: dict[str, Any] = {
            "account": account.user,
            "flowSchema": block.object_name,
            "priorityLevel": block.level,
            "expiresAt": _moment(block.expires_at),
            "applied": applied,
            "notStopped": to_builtins(left),
        }
        print_data(data, output)
        return
    say(
        f"{account.shown} is blocked until {_moment(block.expires_at)}: each API server executes one of its requests "
        "at a time, and answers the others with 429."
    )
    if not applied:
        say("The API server has not said yet that it applies the block. Check the condition Dangling:")
        say_command(f"kubectl get flowschema {block.object_name} -o yaml")
    say("This is not stopped:")
    for each in left:
        say(each.what, head="  - ")
    say("Remove the block:")
    name = f"{account.namespace}/{account.name}" if account.namespace else f"--user '{account.name}'"
    say_command(f"muster doctor unblock {name}")


def _moment(seconds: float) -> str:
    from muster.kube.clock import instant

    return instant(seconds)
