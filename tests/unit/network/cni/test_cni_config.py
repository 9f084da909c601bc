"""The section `pods`, the list of plugins and the rules that follow from it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from muster.api.configtext import ConfigTextError
from muster.network.addresses.attachment import AttachmentKey
from muster.network.cni import masquerade
from muster.network.cni.config import PodsConfig
from muster.network.cni.forwarding import enable, problem
from muster.network.cni.install import LIST, PROGRAM, conflist, install_list, install_program, preferred_lists
from muster.network.cni.masquerade import rules
from muster.network.cni.names import PREFIX, alias, host_interface_name, host_mac, key_of_alias, pod_mac
from muster.network.cni.netconf import Mode
from muster.network.config import parse_config


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mtu: 100", "pods.mtu"),
        ("mode: chained", "pods.mode"),
        ("mode: bridge", "pods.mode"),
        ("master: eth0", "pods.master"),
        ("{mode: macvlan}", "pods.hostPorts"),
        ("{mode: macvlan, hostPorts: false}", "pods.masquerade.enabled"),
        ("cniVersion: '0.3.1'", "pods.cniVersion"),
        ("masquerade: {internal: [10.0.0.1/8]}", "pods.masquerade.internal"),
        ("binDir: opt/cni/bin", "pods.binDir"),
        ("socket: cni.sock", "pods.socket"),
        (f"socket: /run/{'long' * 30}", "pods.socket"),
        ("addresses: {families: []}", "pods.addresses.families"),
        ("hostPort: true", "hostPort"),
    ],
)
def test_wrong_value_is_refused_with_its_path(text: str, says: str) -> None:
    body = text if text.startswith("{") else f"{{{text}}}"
    with pytest.raises(ConfigTextError, match=re.escape(says)):
        parse_config(f"pods: {body}")


def test_defaults_are_valid_and_off() -> None:
    assert not parse_config("").pods.enabled
    shared = "{enabled: true, mode: macvlan, master: eth1, hostPorts: false, masquerade: {enabled: false}}"
    assert parse_config(f"pods: {shared}").pods.mode is Mode.MACVLAN


def test_list_has_the_plugins_that_are_asked_for_after_ours() -> None:
    plain = json.loads(conflist(PodsConfig(host_ports=False)))
    assert [each["type"] for each in plain["plugins"]] == [PROGRAM]
    full = json.loads(conflist(PodsConfig(cni_version="1.1.0", mtu=9000, bandwidth=True)))
    assert full["cniVersion"] == "1.1.0"
    assert [each["type"] for each in full["plugins"]] == [PROGRAM, "portmap", "bandwidth"]
    assert full["plugins"][0]["mtu"] == 9000
    assert full["plugins"][1]["capabilities"] == {"portMappings": True}
    assert full["plugins"][2]["capabilities"] == {"bandwidth": True}


def test_files_are_replaced_as_a_whole_and_only_when_they_differ(tmp_path: Path) -> None:
    config = PodsConfig(bin_dir=str(tmp_path / "bin"), net_dir=str(tmp_path / "net"), host_ports=False)
    source = tmp_path / "shim"
    source.write_bytes(b"one")
    install_program(source, config)
    install_list(config)
    program = tmp_path / "bin" / PROGRAM
    assert program.stat().st_mode & 0o777 == 0o755
    with program.open("rb") as running:  # a runtime that has it open keeps the old one
        before = program.stat().st_ino
        install_program(source, config)
        assert program.stat().st_ino == before
        source.write_bytes(b"two")
        install_program(source, config)
        assert running.read() == b"one"
    assert program.read_bytes() == b"two"
    assert sorted(each.name for each in (tmp_path / "bin").iterdir()) == [PROGRAM]
    assert [each.name for each in (tmp_path / "net").iterdir()] == [LIST]


def test_lists_that_sort_before_ours_are_found(tmp_path: Path) -> None:
    for name in ("00-a.conf", "10-b.conflist", "01-c.txt", "04-d.json"):
        (tmp_path / name).touch()
    assert preferred_lists(PodsConfig(net_dir=str(tmp_path))) == ["00-a.conf", "04-d.json"]
    assert preferred_lists(PodsConfig(net_dir=str(tmp_path / "missing"))) == []


def test_rules_keep_internal_addresses_of_both_families_without_overlaps() -> None:
    text = rules(("10.0.0.0/8", "10.1.0.0/16", "fc00::/7"))
    elements = re.findall(r"elements = \{ ([^}]*) \}", text)
    assert elements == ["10.0.0.0/8, 169.254.0.0/16, 224.0.0.0/4", "fc00::/7, fe80::/10, ff00::/8"]
    assert text.count(f'iifname "{PREFIX}*"') == 2


def test_names_follow_from_the_attachment_and_fit_the_kernel() -> None:
    keys = [AttachmentKey(f"container-{number}", ifname) for number in range(2000) for ifname in ("eth0", "net1")]
    names = [host_interface_name(key) for key in keys]
    assert len(set(names)) == len(keys)
    assert all(len(name) == 15 and name.startswith(PREFIX) for name in names)
    assert names == [host_interface_name(key) for key in keys]
    for key in keys[:100]:
        for mac in (host_mac(key), pod_mac(key)):
            assert int(mac[:2], 16) & 3 == 2  # locally administered, not multicast
        assert host_mac(key) != pod_mac(key)
        assert key_of_alias(alias(key)) == key
    assert key_of_alias("uplink of rack 4") is None
    assert key_of_alias("muster:without-interface") is None


def settings(proc: Path, **values: str) -> Path:
    for name, value in values.items():
        file = proc / "sys/net" / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(value + "\n")
    return proc


def test_forwarding_keeps_the_default_route_of_nodes_that_got_it_from_a_router(tmp_path: Path) -> None:
    proc = settings(
        tmp_path,
        ipv4__ip_forward="0",
        ipv6__conf__all__forwarding="0",
        ipv6__conf__all__accept_ra="1",
        ipv6__conf__eth0__accept_ra="1",
        ipv6__conf__eth1__accept_ra="0",
    )
    assert "net.ipv4.ip_forward is 0" in problem(proc, ipv6=True)
    enable(proc, ipv6=True)
    read = {
        name: (proc / "sys/net/ipv6/conf" / name / "accept_ra").read_text().strip() for name in ("all", "eth0", "eth1")
    }
    assert read == {"all": "1", "eth0": "2", "eth1": "0"}
    assert problem(proc, ipv6=True) == ""


def test_forwarding_of_ipv6_is_left_alone_without_ipv6_pods(tmp_path: Path) -> None:
    proc = settings(tmp_path, ipv4__ip_forward="1", ipv6__conf__all__forwarding="0", ipv6__conf__eth0__accept_ra="1")
    enable(proc, ipv6=False)
    assert (proc / "sys/net/ipv6/conf/all/forwarding").read_text() == "0\n"
    assert (proc / "sys/net/ipv6/conf/eth0/accept_ra").read_text() == "1\n"
    assert problem(proc, ipv6=False) == ""
    (proc / "sys/net/ipv4/ip_forward").unlink()
    assert problem(proc, ipv6=False)


def test_nft_that_hangs_is_an_error_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nft = tmp_path / "nft"
    nft.write_text("#!/bin/sh\nexec sleep 60\n")
    nft.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(masquerade, "_TIMEOUT_S", 0.1)
    with pytest.raises(TimeoutError, match="nft did not end"):
        masquerade.is_applied()
    with pytest.raises(TimeoutError, match="nft did not end"):
        masquerade.remove()
