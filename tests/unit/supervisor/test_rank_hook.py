"""Issue 11.3: what the hook notes about each way to end a program; and that the way stays what it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster.trainingjobs.supervisor.ranks.hook import FOLDER, STACK_SIGNAL
from muster.trainingjobs.supervisor.ranks.watch import RankWatch

LATE = """
import atexit, gc
class Late:
    def __del__(self):
        try: raise SystemExit(3)
        except SystemExit as error: error.code
late = Late(); late.itself = late
def after():
    gc.collect()
    try: raise SystemExit(3)
    except SystemExit as error: assert error.code == 3
atexit.register(after)
"""


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("pass", 0),
        ("1 / 0", 1),
        ("raise KeyboardInterrupt", 130),
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit()", 0),
        ("import sys; sys.exit('no such batch')", 1),
        ("import sys; sys.exit(300)", 44),
        ("raise SystemExit", 0),
        ("raise SystemExit(False)", 0),
        ("raise SystemExit(3)", 3),
        ("raise SystemExit(-1)", 255),
        ("class Own(SystemExit): pass\nraise Own(3)", 3),
        ("import asyncio\nasync def main(): raise SystemExit(3)\nasyncio.run(main())", 3),
        ("import os\nif not os.fork(): raise SystemExit(3)\nassert os.waitstatus_to_exitcode(os.wait()[1]) == 3", 0),
        ("import threading, sys; thread = threading.Thread(target=sys.exit, args=(3,)); thread.start()", 0),
        (LATE, 0),
        (LATE + "raise SystemExit(4)", 4),
    ],
)
def test_the_exit_code_is_noted_and_kept(tmp_path: Path, program: str, code: int) -> None:
    """Also in development mode, where an object that Python frees too late ends in a crash."""
    watch = RankWatch(str(tmp_path))
    env = {**os.environ, FOLDER: watch.folder, "PYTHONPATH": watch.folder}
    process = subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program], env=env, stderr=subprocess.PIPE
    )
    _, error = process.communicate(timeout=60)
    expected = -2 if code == 130 else code  # Python ends itself by the signal then
    assert process.returncode == expected, error.decode()
    assert watch.exit_code(process.pid) == (code or None)
    assert b"in thread" not in error


def test_the_offer_of_stacks_ends_with_a_handler_of_the_program(tmp_path: Path) -> None:
    watch = RankWatch(str(tmp_path))
    program = f"""
import os, signal
number = signal.SIGRTMIN + {STACK_SIGNAL}
assert signal.getsignal(number) == signal.SIG_DFL
note = [name for name in os.listdir({watch.folder!r}) if name.startswith("handler-")][0]
read = lambda: open(os.path.join({watch.folder!r}, note)).read().split()[1]
signal.signal(signal.SIGUSR1, print)
print(read() == str(int(number)))
assert signal.signal(number, print) == signal.SIG_DFL
print(read(), signal.getsignal(number) is print)
"""
    env = {**os.environ, FOLDER: watch.folder, "PYTHONPATH": watch.folder}
    result = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["True", "0", "True"]
