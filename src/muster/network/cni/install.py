"""Installs the plugin and its list on the node, where the container runtime finds them.

The list is written last, once the daemon answers: from then on the runtime reports the node's network as ready. It
stays when the agent restarts. Both appear by rename, so a runtime never reads half of a file.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Final

import msgspec

from muster.network.cni.config import PodsConfig

PROGRAM: Final = "muster-cni"
LIST: Final = "05-muster.conflist"
"""A runtime uses the first file in alphabetical order (containerd, CRI-O)."""
NETWORK: Final = "muster"
_SUFFIXES: Final = (".conf", ".conflist", ".json")


def conflist(config: PodsConfig) -> str:
    """Return the text of the list."""
    ours: dict[str, Any] = {"type": PROGRAM, "mode": str(config.mode), "socket": config.socket}
    if config.master:
        ours["master"] = config.master
    if config.mtu:
        ours["mtu"] = config.mtu
    plugins = [ours]
    if config.host_ports:
        plugins.append({"type": "portmap", "capabilities": {"portMappings": True}, "snat": True})
    if config.bandwidth:
        plugins.append({"type": "bandwidth", "capabilities": {"bandwidth": True}})
    document = {"cniVersion": config.cni_version, "name": NETWORK, "plugins": plugins}
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def install_program(source: Path, config: PodsConfig) -> None:
    """Copy the plugin to the node, unless the same one is there.

    Raises:
        OSError: it cannot be read or written, or a plugin of the list is missing on the node.
    """
    for name, wanted in (("portmap", config.host_ports), ("bandwidth", config.bandwidth)):
        if wanted and not (Path(config.bin_dir) / name).exists():
            field = "hostPorts" if name == "portmap" else name
            raise OSError(
                f"the plugin {name} is not in {config.bin_dir}; install the CNI project's plugins there, or set"
                f" pods.{field} to false"
            )
    _put(Path(config.bin_dir) / PROGRAM, source.read_bytes(), 0o755)


def install_list(config: PodsConfig) -> None:
    """Write the list, unless the same one is there. Raises OSError."""
    _put(Path(config.net_dir) / LIST, conflist(config).encode(), 0o644)


def is_installed(config: PodsConfig) -> bool:
    """Return whether a list is there, of this or an earlier process."""
    return (Path(config.net_dir) / LIST).exists()


def preferred_lists(config: PodsConfig) -> list[str]:
    """Return the names of other networks' files that the runtime prefers to ours."""
    names = sorted(each.name for each in Path(config.net_dir).glob("*") if each.suffix in _SUFFIXES)
    return [name for name in names if name < LIST]


def uninstall_list(config: PodsConfig) -> None:
    """Remove the list: the runtime gives no new pod an address of ours. Raises OSError."""
    (Path(config.net_dir) / LIST).unlink(missing_ok=True)


def uninstall_program(config: PodsConfig) -> None:
    """Remove the plugin. Pods that still have an address need it for DEL. Raises OSError."""
    (Path(config.bin_dir) / PROGRAM).unlink(missing_ok=True)


def _put(path: Path, content: bytes, mode: int) -> None:
    with contextlib.suppress(OSError):
        if path.read_bytes() == content and path.stat().st_mode & 0o777 == mode:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
