"""Prepares an attempt on this node: its environment, checks and command lines."""

from __future__ import annotations

import os
import shutil
from typing import NamedTuple

from ..basics import ARCHIVE, SELF
from ..remoteshell.sshd import server_command
from ..settings import Settings
from ..state.attempt import AttemptSpec
from .launchers import mpi_command, mpi_program, torchrun_command, torchrun_program
from .programs import check_length, check_program

_supervisor = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SOURCE_TREE = os.path.dirname(os.path.dirname(os.path.dirname(_supervisor)))


class Launch(NamedTuple):
    """A launcher, or a rank of launcher none, to start."""

    argv: list[str]
    env: dict[str, str]
    prefix: str


class Prepared(NamedTuple):
    """The processes to start on this node, and the command of the image's sshd if that serves connections."""

    launches: list[Launch]
    sshd: list[str]


def ssh_folder(folder: str) -> str:
    """The folder of an attempt's ssh keys, inside the supervisor's."""
    return os.path.join(folder, "ssh")


def environment(spec: AttemptSpec, folder: str) -> dict[str, str]:
    """Return the environment of launchers and remote commands: the pod's own, with the attempt's variables."""
    env = {"PYTHONUNBUFFERED": "1", **os.environ, **spec.env}  # so that the last output of a killed rank is not lost
    sdk = os.path.join(os.path.dirname(ARCHIVE), "sdk") if ARCHIVE else SOURCE_TREE
    env["PYTHONPATH"] = os.pathsep.join(part for part in (env.get("PYTHONPATH", ""), sdk) if part)
    env["MUSTER_RANK_SOCKET"] = os.path.join(folder, "ranks")
    return env


def prepare(spec: AttemptSpec, settings: Settings, folder: str) -> Prepared:
    """Check that this node can run the attempt, and write the launcher's files. Raises CannotStart or OSError."""
    env = environment(spec, folder)
    check(spec, env, settings)
    launches: list[Launch] = []
    sshd: list[str] = []
    if spec.launcher == "mpi":
        if spec.remote_shell == "sshd":
            shutil.rmtree(ssh_folder(folder), ignore_errors=True)
            os.mkdir(ssh_folder(folder), 0o700)
            sshd = server_command(spec, settings, ssh_folder(folder), env)
        if spec.node_rank == 0:  # the other nodes serve its remote shells
            launches.append(Launch(mpi_command(spec, settings, folder, env), env, "[mpiexec] "))
    elif spec.launcher == "torchrun":
        launches.append(Launch(torchrun_command(spec, env), env, "[torchrun] "))
    else:
        for local in range(spec.ranks_per_node):
            numbers = {
                "MUSTER_RANK": str(spec.node_rank * spec.ranks_per_node + local),
                "MUSTER_LOCAL_RANK": str(local),
                "MUSTER_WORLD_SIZE": str(spec.nodes * spec.ranks_per_node),
            }
            launches.append(Launch([*SELF, "rank", "--", *spec.command], dict(env, **numbers), ""))
    return Prepared(launches, sshd)


def check(spec: AttemptSpec, env: dict[str, str], settings: Settings) -> None:
    """Raise CannotStart if this node cannot execute the launcher or the command, even if another node starts them."""
    if spec.launcher == "mpi":
        mpi_program(env)
    elif spec.launcher == "torchrun":
        torchrun_program(env)
    check_program(spec.command[0], env, settings.workdir)
    check_length(spec.command, env)
