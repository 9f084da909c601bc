"""The program `muster` as a user runs it, with a home, state folder and kubeconfig of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from muster.controlplane.children import Child
from tests.support.waiting import TIMEOUT_S, eventually

ENV = shutil.which("env") or "env"
MUSTER = Path(sys.executable).with_name("muster")
SCRUBBED = ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "MUSTER_STATE_DIR", "XDG_STATE_HOME", "NO_COLOR", "MUSTER_DEBUG")


class Muster:
    """Runs `muster` in `work`, with `home` as the user's home, and ends what it left."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.work = home
        self.state = home / "state"
        self.kubeconfig = home / ".kube" / "config"
        self._starts = 0
        kept = {name: value for name, value in os.environ.items() if name not in SCRUBBED}
        self.env = kept | {"HOME": str(home), "XDG_STATE_HOME": str(self.state), "TERM": "dumb"}
        home.mkdir(parents=True, exist_ok=True)

    def run(
        self,
        *arguments: str | Path,
        timeout_s: float = 120.0,
        stdin: str = "",
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        program: Path = MUSTER,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(program), *map(str, arguments)],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            cwd=cwd or self.work,
            env=self.env | dict(env or {}),
        )

    def ok(self, *arguments: str | Path, **options: Any) -> str:
        """Run it and return stdout; fails the test with everything it said unless it exits with 0."""
        done = self.run(*arguments, **options)
        assert done.returncode == 0, f"muster {' '.join(map(str, arguments))}: {done}"
        return done.stdout

    def json(self, *arguments: str | Path, **options: Any) -> Any:
        return json.loads(self.ok(*arguments, "-o", "json", **options))

    def offered(self, line: str, **env: str) -> set[str]:
        """What bash is offered for the last word of the line; fails the test where anything is said beside."""
        words = {"_MUSTER_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        done = self.run(env=words | env, timeout_s=25)
        assert (done.returncode, done.stderr) == (0, ""), done
        return {each.removeprefix("plain,") for each in done.stdout.split()}

    def start(self, *arguments: str | Path) -> Child:
        """Run it beside the test; what it says is in its log. It ends with us."""
        self._starts += 1
        log = self.home.with_name(f"{self.home.name}-{self._starts}.log")
        return Child([ENV, f"--chdir={self.work}", MUSTER, *map(str, arguments)], log, self.env)

    def folder(self, name: str = "embedded") -> Path:
        """The state folder of a cluster."""
        return self.state / "muster" / name

    def spec(self, name: str = "embedded") -> dict[str, Any]:
        stored: dict[str, Any] = json.loads((self.folder(name) / "cluster.json").read_text())
        return stored

    def processes(self) -> dict[int, str]:
        """Every process started below our home, by its environment: HOME is inherited by all of them."""
        return carrying(f"HOME={self.home}")

    def end(self) -> None:
        """Stop clusters that a test left, whatever state they are in."""
        for folder in (self.state / "muster").glob("*/cluster.json"):
            self.run("down", "--name", folder.parent.name)
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def exit_code(child: Child, timeout_s: float = TIMEOUT_S) -> int | None:
    """Wait until it has ended, and return what it ended with."""
    eventually(f"{child.name} ends, see {child.log}", lambda: child.exit_code is not None, timeout_s)
    return child.exit_code


@contextlib.contextmanager
def muster_in(home: Path) -> Iterator[Muster]:
    """A Muster below a folder that leaves nothing running."""
    muster = Muster(home)
    try:
        yield muster
    finally:
        muster.end()


def carrying(entry: str) -> dict[int, str]:
    """Processes whose environment has this entry, with their command lines; zombies and ourselves are left out."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                if entry.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    if command:
                        found[int(folder.name)] = command
    return found
