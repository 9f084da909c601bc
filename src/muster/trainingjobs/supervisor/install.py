"""`install DIR`: installs the supervisor; run by the init container."""

from __future__ import annotations

import importlib.util
import marshal
import os
import shutil
import zipfile
from importlib.machinery import SourceFileLoader

from .basics import ARCHIVE, UsageError

NAME = "muster_supervisor"  # name of the package inside the file
MAIN = f"from {NAME}.main import run_and_exit\n\nrun_and_exit()\n"


def command_install(arguments: list[str]) -> int:
    """Run `install DIR`."""
    if len(arguments) != 1:
        raise UsageError("usage: supervisor.py install DIR")
    if ARCHIVE:
        raise UsageError(
            f"{ARCHIVE} is what `install` makes; run it as python3 -m muster.trainingjobs.supervisor install"
        )
    folder, package = arguments[0], os.path.dirname(os.path.abspath(__file__))
    muster = os.path.dirname(os.path.dirname(package))
    target = os.path.join(folder, "sdk", "muster")
    for source in ["__init__.py", *_modules(muster, "sdk")]:
        os.makedirs(os.path.dirname(os.path.join(target, source)), exist_ok=True)
        shutil.copyfile(os.path.join(muster, source), os.path.join(target, source))
    own = os.path.join(folder, "supervisor.py")
    assemble(package, own + ".new")
    os.chmod(own + ".new", 0o755)
    os.replace(own + ".new", own)
    return 0


def _modules(root: str, below: str) -> list[str]:
    """Paths of the Python files in a folder and its subfolders, relative to the root."""
    found = os.walk(os.path.join(root, below))
    paths = [os.path.join(folder, name) for folder, _, names in found for name in names if name.endswith(".py")]
    return [os.path.relpath(path, root) for path in paths]


def assemble(package: str, path: str) -> None:
    """Write the package's modules into one runnable file. The same modules give the same bytes.

    They are not compressed, because the image's Python may lack zlib. Beside each module lies its bytecode, which
    halves the CPU time of a start. A Python of another version ignores it and compiles the module (zipimport).
    """
    modules = sorted(
        os.path.relpath(os.path.join(folder, name), package)
        for folder, _, names in os.walk(package)
        for name in names
        if name.endswith(".py") and name != "__main__.py"
    )
    with open(path, "wb") as file:
        file.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(
                zipfile.ZipInfo("__main__.py"), MAIN
            )  # ZipInfo's defaults: dated 1980, readable by its owner
            for name in modules:
                with open(os.path.join(package, name), "rb") as file_of_module:
                    source = file_of_module.read()
                archive.writestr(zipfile.ZipInfo(f"{NAME}/{name}"), source)
                archive.writestr(zipfile.ZipInfo(f"{NAME}/{name}c"), _bytecode(os.path.join(package, name), source))


def _bytecode(path: str, source: bytes) -> bytes:
    """Return a module's bytecode in the format of PEP 552, which need not be compared with the source."""
    code = SourceFileLoader("module", path).get_code("module")
    same_bytes = marshal.loads(marshal.dumps(code))  # new code and code from a cache are written differently
    unchecked_hash = (1).to_bytes(4, "little")
    head = importlib.util.MAGIC_NUMBER + unchecked_hash + importlib.util.source_hash(source)
    return head + marshal.dumps(same_bytes)
