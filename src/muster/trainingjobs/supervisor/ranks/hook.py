"""Loaded by each rank's Python at start, as `sitecustomize`: reports a rank's failure before the rank ends.

After an uncaught exception Python prints a traceback, and then waits: for threads, for `MPI_Finalize`, for a process
group whose other members are in the middle of a collective. So the rank leaves a note for its supervisor, which ends
the process if it does not end by itself. With mpi4py, `MPI_Abort` takes the place of `MPI_Finalize`.

The supervisor writes this file into its private folder and puts that folder first into the rank's PYTHONPATH. Only the
first Python of a rank loads it: children, such as workers of multiprocessing, start without it. A `sitecustomize` of
the image or the user is loaded as before. This file must not fail a program, or change its exit code.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing typing would slow down each start
if TYPE_CHECKING:
    from types import CodeType, TracebackType
    from typing import Any

FOLDER, NAME = "MUSTER_RANK_HOOK", "hook"
FAILING, HANDLER, STACKS = "failing-", "handler-", "stacks-"
STACK_SIGNAL = 12
"""A real-time signal: programs and launchers use the named signals, and glibc uses the first two real-time ones."""
TAKEN = 0
"""Written instead of the signal's number if the program uses the signal itself."""


def begin() -> None:
    """Remove the folder from the environment, load the next `sitecustomize`, and watch for the end."""
    folder = os.environ.pop(FOLDER, "")
    if not folder:
        return
    kept = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each != folder]
    if any(kept):
        os.environ["PYTHONPATH"] = os.pathsep.join(kept)
    else:
        os.environ.pop("PYTHONPATH", None)
    sys.path[:] = [each for each in sys.path if each != folder]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if getattr(error, "name", "") != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours
    finally:
        try:  # noqa: SIM105  # each import slows down each start
            Watch(folder)
        except Exception:  # the program must run without the hook
            pass


class Watch:
    """Records a failure of this process's main thread, but not of its children or other threads."""

    def __init__(self, folder: str) -> None:
        import _thread
        import atexit
        import threading

        self._folder, self._pid, self._thread = folder, os.getpid(), _thread.get_ident()
        self._noted = False
        self._before, sys.excepthook = sys.excepthook, self.excepthook
        self._watch_exit()
        atexit.register(self.ending)
        self._shutdown = getattr(threading, "_shutdown", None)
        if self._shutdown is not None:  # Python joins threads before it calls the functions of atexit
            threading._shutdown = self.shutdown  # type: ignore[attr-defined]
        self._offer_stacks()

    def excepthook(self, kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        """Print as before. Record the failure only if Python itself calls this: a console may call it and continue."""
        self._before(kind, value, trace)
        if _outermost() is _code_of(sys.excepthook):
            self.failing(130 if issubclass(kind, KeyboardInterrupt) else 1)

    def shutdown(self, *arguments: Any, **more: Any) -> Any:
        """Replaces `threading._shutdown`."""
        self.ending()
        return self._shutdown(*arguments, **more) if self._shutdown is not None else None

    def ending(self) -> None:
        """Record a failure at the end of the interpreter.

        Python keeps the traceback even if another excepthook printed it.
        """
        trace = getattr(sys, "last_traceback", None)
        code = trace.tb_frame.f_code if trace is not None else None
        if trace is None or code is None:
            return
        main = getattr(sys.modules.get("__main__"), "__dict__", None)
        script = code.co_name == "<module>" and trace.tb_frame.f_globals is main
        console = code.co_filename.startswith("<") and code.co_filename != "<string>"  # the name of code from python -c
        if (script and not console) or code.co_name == "_run_module_as_main":
            self.failing(1)

    def failing(self, code: int) -> None:
        """Write the note: this process is about to end with this exit code, which is not 0."""
        import _thread

        if self._noted or os.getpid() != self._pid or _thread.get_ident() != self._thread:
            return
        self._noted = True
        try:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            _write(os.path.join(self._folder, FAILING + str(self._pid)), f"{_started()} {code}\n")
            mpi: Any = sys.modules.get("mpi4py.MPI")
            if mpi is not None:  # makes mpi4py call MPI_Abort at the end of Python, as `python -m mpi4py` does
                mpi._set_abort_status(code)
        except Exception:
            pass

    def _watch_exit(self) -> None:
        """Detect a SystemExit that ends the program: Python's C code then reads its attribute `code`.

        So this replaces the attribute by a property. The dictionary of a built-in type can be changed only in this way.
        It is safe for two reasons. No program has read the attribute yet, so Python has not cached it. And the property
        is never freed: Python clears that dictionary after all finalizers.
        """
        import gc

        (attributes,) = gc.get_referents(SystemExit.__dict__)
        member, failing, frame = attributes["code"], self.failing, sys._getframe

        def code(error: SystemExit) -> Any:
            """Exception code."""
            value = member.__get__(error)
            if frame().f_back is None:
                number = 0 if value is None else value & 255 if isinstance(value, int) else 1
                if number:
                    failing(number)
            return value

        attributes["code"] = code.kept = property(code, member.__set__, member.__delete__)  # type: ignore[attr-defined]
        if sys.version_info < (3, 12):  # on older versions sys.exit creates no instance, so Python reads no attribute

            def exit(*status: Any) -> Any:
                """Exit the interpreter by raising SystemExit(status), as the function of Python does."""
                if len(status) > 1:
                    raise TypeError(f"exit expected at most 1 argument, got {len(status)}")
                raise SystemExit(*(status[0] if status and isinstance(status[0], tuple) else status))

            sys.exit = exit

    def _offer_stacks(self) -> None:
        """Register a signal handler that writes this process's stacks into a file, and note it for the supervisor.

        If the program sets a handler for the same signal, the note is removed first.
        """
        import _signal  # type: ignore[import-not-found]
        import faulthandler

        number = _signal.SIGRTMIN + STACK_SIGNAL
        note, started = os.path.join(self._folder, HANDLER + str(self._pid)), _started()
        if _signal.getsignal(number) != _signal.SIG_DFL:
            _write(note, f"{started} {TAKEN}\n")
            return
        self._stacks = open(os.path.join(self._folder, STACKS + str(self._pid)), "a")  # noqa: SIM115
        faulthandler.register(number, file=self._stacks, all_threads=True, chain=False)
        _write(note, f"{started} {number}\n")
        before = _signal.signal

        def signal(signalnum: int, handler: Any) -> Any:
            """Set the action for the given signal, as the function of Python does."""
            if signalnum == number and os.getpid() == self._pid:
                _write(note, f"{started} {TAKEN}\n")
            return before(signalnum, handler)

        _signal.signal = signal  # signal.signal calls this function


def _outermost() -> CodeType:
    """The code of the outermost Python function that runs in this thread."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code


def _code_of(hook: Any) -> Any:
    """The code that runs first when Python calls this excepthook; None if that is not written in Python."""
    return getattr(hook if hasattr(hook, "__code__") else type(hook).__call__, "__code__", None)


def _started() -> str:
    """Returns this process's start time, in ticks since boot (proc_pid_stat(5)): the kernel reuses pids."""
    with open("/proc/self/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[19].decode()


def _write(path: str, text: str) -> None:
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path)


if __name__ == "sitecustomize":
    begin()
