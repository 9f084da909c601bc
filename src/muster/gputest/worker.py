"""The worker process that runs tests (`python -m muster.gputest.worker`), and is killed if one of them hangs.

It runs one test after the other, because starting the libraries takes longer than most tests. The first line of its
input is Setup; each further one is a Request. Events go to its original standard output; output of libraries goes to
its standard error.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import BinaryIO

import msgspec

from muster.gputest.backend import BackendError
from muster.gputest.codes import Code
from muster.gputest.context import Context
from muster.gputest.levels import HOST_TESTS
from muster.gputest.probes import probe
from muster.gputest.wire import Event, Finished, Request, Said, Setup

_WITHOUT_GPUS = HOST_TESTS | {"visibility"}


def main() -> None:
    """Serve requests until the input ends."""
    with os.fdopen(os.dup(1), "wb", buffering=0) as events:
        os.dup2(2, 1)
        _serve(sys.stdin.buffer, events)


def _serve(requests: BinaryIO, events: BinaryIO) -> None:
    def emit(event: Event) -> None:
        events.write(msgspec.json.encode(event) + b"\n")

    emit(Said("", "started"))
    context = Context(msgspec.json.decode(requests.readline(), type=Setup), emit)
    for line in requests:
        request = msgspec.json.decode(line, type=Request)
        context.begin(request)
        emit(_run(context, request))


def _run(context: Context, request: Request) -> Finished:
    try:
        if request.test not in _WITHOUT_GPUS and not context.backend.devices():
            raise BackendError(Code.GPU_COUNT, "the driver shows no GPU")
        probe(request.test)(context)
        context.release()
    except BackendError as error:
        return Finished(error=str(error), code=error.code)
    except Exception as error:  # any exception of a driver or library is a finding about this node
        traceback.print_exc()
        return Finished(error=f"{type(error).__name__}: {error}")
    return Finished()


if __name__ == "__main__":
    main()
