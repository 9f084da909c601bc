"""The command lines of mpiexec and torchrun."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import json
import os
import re
import shlex
import shutil
import socket
import struct
import subprocess
from typing import Any, Mapping

from ..basics import SELF, write_file
from ..remoteshell.sshd import client_command
from ..settings import Settings
from ..state.attempt import AttemptSpec
from .programs import CannotStart

SIOCGIFADDR = 0x8915  # linux/sockios.h
_AGENT = "muster-agent"
"""The program that mpiexec runs in the role of ssh."""


def which(name: str, env: Mapping[str, str]) -> str | None:
    """The program on the pod's PATH."""
    return shutil.which(name, path=env.get("PATH"))


def interface_of(address: str) -> str:
    """Return the network interface with this IPv4 address. Raises CannotStart if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an IPv4 address
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    raise CannotStart(f"launcher mpi: no network interface has POD_IP {address}")


def mpi_program(env: Mapping[str, str]) -> str:
    """Return the path of the image's mpiexec. Raises CannotStart if it has none."""
    program = next((path for path in (which(n, env) for n in ("mpiexec.hydra", "mpiexec", "mpirun")) if path), None)
    if program is None:
        message = "launcher mpi: no mpiexec or mpirun on PATH; the image needs MPICH, Intel MPI or Open MPI"
        raise CannotStart(message, errno.ENOENT, "mpiexec")
    return program


def mpi_command(attempt: AttemptSpec, settings: Settings, folder: str, env: dict[str, str]) -> list[str]:
    """The mpiexec command line that starts `supervisor.py rank` on every node through `supervisor.py rsh`.

    -genvnone: a rank has the environment of its own pod, not of rank 0's. Its node's supervisor passes it
    to the remote command.

    -localhost: an address that the others reach. A pod's host name often has no DNS record.

    mpiexec finds the agent on its PATH by a bare name. Hydra passes a path to its proxies without quotes, so
    a space in it would end the path there.
    """
    program = mpi_program(env)
    try:
        version = subprocess.run(
            [program, "--version"], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=20, check=False,
        ).stdout.decode("utf-8", "replace")  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotStart(f"launcher mpi: {program} --version: {error}") from error
    open_mpi = re.search(r"(?:Open MPI|OpenRTE|PRRTE|prterun)\D*(\d+)", version)
    files = {name: os.path.join(folder, name) for name in ("shell.json", "hosts", _AGENT)}
    config: dict[str, Any] = {
        "attempt": attempt.number,
        "jobUID": settings.job_uid,
        "key": attempt.key.hex(),
        "hosts": attempt.hosts,
    }
    if attempt.remote_shell == "sshd":
        config["ssh"] = client_command(attempt, settings, os.path.join(folder, "ssh"), env)
    slots = "{} slots={}\n" if open_mpi else "{}:{}\n"
    agent = '#!/bin/sh\nexec {} rsh "$@"\n'.format(" ".join(shlex.quote(part) for part in SELF))
    texts = {
        "shell.json": json.dumps(config),
        "hosts": "".join(slots.format(host["address"], host["ranks"]) for host in attempt.hosts),
        _AGENT: agent,
    }
    for name, path in files.items():
        write_file(path, texts[name], 0o700 if name == _AGENT else 0o600)
    env["PATH"] = os.pathsep.join([folder, env["PATH"]] if env.get("PATH") else [folder, os.defpath])
    env["MUSTER_SHELL_CONFIG"] = files["shell.json"]
    total = sum(int(host["ranks"]) for host in attempt.hosts)
    rank = [*SELF, "rank", "--", *attempt.command]
    if open_mpi:
        env.update({name + "_ALLOW_RUN_AS_ROOT" + end: "1" for name in ("OMPI", "PRTE") for end in ("", "_CONFIRM")})
        family, kind = ("--prtemca", "plm_ssh") if int(open_mpi.group(1)) >= 5 else ("--mca", "plm_rsh")
        return [
            program, "--hostfile", files["hosts"], family, kind + "_agent", _AGENT,
            family, kind + "_no_tree_spawn", "1", "--leave-session-attached", "--bind-to", "none", "--map-by", "slot",
            *attempt.extra_arguments, "-np", str(total), *rank,
        ]  # fmt: skip
    interface = []
    if all(ipaddress.ip_address(host["address"]).is_loopback for host in attempt.hosts):
        interface = ["-iface", "lo"]
    elif "Intel" in version:  # whose -localhost does not reach its bootstrap proxies
        interface = ["-iface", interface_of(settings.address)]
    # the only option of Intel MPI that reads the number of ranks of each host from the file
    hosts = "-machinefile" if "Intel" in version else "-f"
    return [
        program, "-launcher", "ssh", "-launcher-exec", _AGENT, hosts, files["hosts"],
        "-localhost", settings.address, *interface, "-genvnone",
        *attempt.extra_arguments, "-n", str(total), *rank,
    ]  # fmt: skip


def torchrun_program(env: Mapping[str, str]) -> str:
    """Return the path of the image's torchrun. Raises CannotStart if it has none."""
    program = which("torchrun", env)
    if program is None:
        raise CannotStart("launcher torchrun: no torchrun on PATH; the image needs PyTorch", errno.ENOENT, "torchrun")
    return program


def torchrun_command(attempt: AttemptSpec, env: dict[str, str]) -> list[str]:
    """Torchrun with fixed nodes and no restarts of its own.

    The options have underscores, because PyTorch before 2.0 accepts only these.
    """
    return [
        torchrun_program(env), "--nnodes", str(attempt.nodes), "--nproc_per_node", str(attempt.ranks_per_node),
        "--node_rank", str(attempt.node_rank), "--master_addr", attempt.master_address,
        "--master_port", str(attempt.master_port), "--max_restarts", "0",
        "--no_python", *SELF, "rank", "--", *attempt.command,
    ]  # fmt: skip
