"""Uses the image's own sshd and ssh instead of the remote shell (`mpi.remoteShell: sshd`).

The supervisor keeps listening on the shell port and starts `sshd -i` for each connection. So sshd's processes are its
own and end with the attempt. A session may do one thing: hand its command to the supervisor (`session`), which runs it
like commands of its own remote shell. Settings come only from the folder written here, never from /etc/ssh.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import shutil
import subprocess
from typing import Mapping

from ..attempts.programs import CannotStart
from ..basics import SELF, write_file
from ..settings import Settings
from ..state.attempt import AttemptSpec
from .sshkeys import client_key, host_key
from .wire import SSHD_MARK

FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/sbin", "/usr/bin", "/usr/local/bin", "/bin")

# StrictModes refuses a key file below a folder that all users may write to, such as /tmp. It accepts the output of a
# program that root owns. The key's options allow only its command.
SERVER = """
HostKey "{folder}/host_key"
PidFile none
AllowUsers {user}
PermitRootLogin forced-commands-only
AuthenticationMethods publickey
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
AuthorizedKeysFile none
AuthorizedKeysCommand {cat} "{folder}/authorized_key"
AuthorizedKeysCommandUser {user}
StrictModes yes
DisableForwarding yes
PermitTTY no
PermitTunnel no
PermitUserEnvironment no
PermitUserRC no
PrintMotd no
PrintLastLog no
UseDNS no
MaxAuthTries 2
MaxSessions 1
LoginGraceTime 10
ClientAliveInterval 15
ClientAliveCountMax 3
LogLevel INFO
VersionAddendum {mark}
"""

CLIENT = """
Host *
  User {user}
  IdentityFile "{folder}/client_key"
  IdentitiesOnly yes
  IdentityAgent none
  PreferredAuthentications publickey
  BatchMode yes
  UserKnownHostsFile "{folder}/known_hosts"
  GlobalKnownHostsFile /dev/null
  HostKeyAlgorithms ssh-ed25519
  StrictHostKeyChecking yes
  UpdateHostKeys no
  CheckHostIP no
  ControlMaster no
  ControlPath none
  ForwardAgent no
  ForwardX11 no
  ClearAllForwardings yes
  RequestTTY no
  ConnectTimeout 10
  ServerAliveInterval 15
  ServerAliveCountMax 3
  LogLevel ERROR
  ProxyUseFdpass yes
  ProxyCommand {dial} %h %p
"""


def server_command(attempt: AttemptSpec, settings: Settings, folder: str, env: Mapping[str, str]) -> list[str]:
    """Write the files of this node's sshd.

    Returns the command that serves a connection on its stdin. Raises CannotStart.
    """
    program, cat, user = find("sshd", "openssh-server", env), find("cat", "coreutils", env), user_name()
    key = client_key(attempt.key, settings.job_uid, attempt.number).public
    session = [*SELF, "session", os.path.join(os.path.dirname(folder), "ranks"), str(attempt.number)]
    command = " ".join(shlex.quote(part) for part in session).replace('"', '\\"')
    write_file(
        os.path.join(folder, "host_key"),
        host_key(attempt.key, settings.job_uid, attempt.number, settings.address).private,
    )
    write_file(os.path.join(folder, "authorized_key"), f'restrict,command="exec {command}" {key}\n')
    config = os.path.join(folder, "sshd_config")
    write_file(
        config, SERVER.format(folder=folder, user=user, cat=cat, mark=SSHD_MARK.format(attempt.number).strip()).lstrip()
    )
    check([program, "-t", "-f", config], env)
    return [program, "-i", "-e", "-f", config]


def client_command(attempt: AttemptSpec, settings: Settings, folder: str, env: Mapping[str, str]) -> list[str]:
    """Write the files of node rank 0's ssh. Returns the ssh command, to which a host and a command are appended."""
    program = find("ssh", "openssh-client", env)
    dial = " ".join(shlex.quote(part) for part in [*SELF, "dial"]).replace("%", "%%")
    text = CLIENT.format(folder=folder.replace("%", "%%"), user=user_name(), dial=dial).lstrip()
    known = ""
    for host in attempt.hosts:
        address, port = host["address"], host["shellPort"]
        text += f"Host {address}\n  Port {port}\n"
        public = host_key(attempt.key, settings.job_uid, attempt.number, address).public
        known += f"[{address}]:{port} {public}\n"
    write_file(os.path.join(folder, "client_key"), client_key(attempt.key, settings.job_uid, attempt.number).private)
    write_file(os.path.join(folder, "known_hosts"), known)
    write_file(os.path.join(folder, "ssh_config"), text)
    return [program, "-F", os.path.join(folder, "ssh_config"), "--"]


def find(name: str, package: str, env: Mapping[str, str], folders: tuple[str, ...] = FOLDERS) -> str:
    """Find a program on PATH or in a usual folder. Raises CannotStart if the image has none."""
    path = shutil.which(name, path=os.pathsep.join((env.get("PATH", ""), *folders)))
    if path is None:
        raise CannotStart(
            f"mpi.remoteShell sshd: no {name} on PATH or in {', '.join(folders)}; install the image's package "
            f"{package} (Debian's and Red Hat's name), or leave mpi.remoteShell out"
        )
    return os.path.abspath(path)


def user_name() -> str:
    """Returns the user this process runs as; CannotStart if ssh and sshd could not log that user in."""
    try:
        entry = pwd.getpwuid(os.getuid())
    except KeyError:
        raise CannotStart(
            f"mpi.remoteShell sshd: user {os.getuid()} has no entry in the image's /etc/passwd, which ssh needs"
        ) from None
    shell = entry.pw_shell or "/bin/sh"
    if os.path.basename(shell) in ("nologin", "false") or not os.access(shell, os.X_OK):
        raise CannotStart(
            f"mpi.remoteShell sshd: the shell of user {entry.pw_name} is {shell}, which sshd cannot run "
            "commands with; give the user /bin/sh in the image"
        )
    return entry.pw_name


def check(command: list[str], env: Mapping[str, str]) -> None:
    """Let sshd check its settings, and create the folder for its privilege separation.

    Raises CannotStart if sshd refuses.
    """
    for last in (False, True):
        try:
            result = subprocess.run(
                command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                timeout=20, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CannotStart(f"mpi.remoteShell sshd: {' '.join(command)}: {error}") from error
        said = result.stdout.decode("utf-8", "replace").strip()
        if result.returncode == 0:
            return
        missing = re.search(r"Missing privilege separation directory: (/\S+)", said)
        if last or missing is None:
            raise CannotStart(f"mpi.remoteShell sshd: {command[0]} will not start: {said[-500:]}")
        os.makedirs(missing.group(1), 0o755, exist_ok=True)  # Debian's service creates it at its start
