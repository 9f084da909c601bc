"""Loads programs of eBPF of any kind, with the verifier's reason if it refuses one."""

from __future__ import annotations

import ctypes
import errno
import struct
from typing import Final

from muster.network.bpf.syscall import PROG_LOAD, BpfError, bpf, packed

_LOAD: Final = struct.Struct("=IIQQIIQII16sII")
_LOG_BYTES: Final = 256 * 1024
_LOG_SHOWN: Final = 600


def load(code: bytes, kind: int, attach_type: int, name: str, license: str = "Apache-2.0") -> int:
    """Load instructions and return the program's descriptor.

    Args:
        code: what `Assembler.assemble` returns.
        kind: a program type of linux/bpf.h.
        attach_type: where the program will be attached, as linux/bpf.h numbers it.
        name: at most 15 characters, for tools only.
        license: some functions of the kernel require one that is compatible with the GPL.

    Raises:
        BpfError: EPERM without CAP_BPF and CAP_NET_ADMIN; EACCES or EINVAL with the verifier's reason in `log`.
    """
    try:
        return _loaded(code, kind, attach_type, name, license, None)
    except BpfError as error:
        if error.errno not in (errno.EACCES, errno.EINVAL):
            raise
    log = ctypes.create_string_buffer(_LOG_BYTES)
    try:
        return _loaded(code, kind, attach_type, name, license, log)
    except BpfError as error:
        words = log.value.decode(errors="replace").strip()[-_LOG_SHOWN:]
        raise BpfError(error.errno or errno.EINVAL, f"load program {name}", words) from None


def _loaded(
    code: bytes, kind: int, attach_type: int, name: str, license: str, log: ctypes.Array[ctypes.c_char] | None
) -> int:
    instructions = ctypes.create_string_buffer(code, len(code))
    licensed = ctypes.create_string_buffer(license.encode())
    level, size, address = (0, 0, 0) if log is None else (1, len(log), ctypes.addressof(log))
    data = _LOAD.pack(
        kind,
        len(code) // 8,
        ctypes.addressof(instructions),
        ctypes.addressof(licensed),
        level,
        size,
        address,
        0,
        0,
        name.encode(),
        0,
        attach_type,
    )
    return bpf(PROG_LOAD, packed(data), f"load program {name}")
