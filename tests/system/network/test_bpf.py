"""Programs of eBPF at control groups that the test makes, in the kernel."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from muster.network.bpf import assembler, groups
from muster.network.bpf.assembler import FRAME, R0, R1, R2, R6, WORD, Assembler
from muster.network.bpf.groups import EGRESS, Program
from muster.network.bpf.maps import ARRAY, HASH, LPM_TRIE, MAPPABLE, Map
from muster.network.bpf.syscall import BpfError
from tests.support.networknamespaces import Network, need_namespaces
from tests.support.unifiedgroups import send_from_group, unified_group


def need_bpf() -> None:
    """Skip the test where this user may load no programs; fail it with MUSTER_REQUIRE_REAL=1."""
    need_namespaces()
    try:
        Map.create(HASH, "probe", value_bytes=4, entries_max=1).close()
    except BpfError as error:
        if os.environ.get("MUSTER_REQUIRE_REAL") == "1":
            pytest.fail(f"MUSTER_REQUIRE_REAL=1 and {error}", pytrace=False)
        pytest.skip(str(error))


def counting(map_: Map) -> bytes:
    """Return a program that adds the bytes of each packet to entry 0 of an ARRAY."""
    code = Assembler()
    code.move(R6, R1)
    code.store_number(WORD, FRAME, -4, 0)
    code.map(R1, map_.descriptor)
    code.move(R2, FRAME)
    code.calculate(assembler.ADD, R2, -4)
    code.call(groups.LOOKUP)
    code.jump(assembler.EQUAL, R0, 0, "done")
    code.load(WORD, R1, R6, groups.LENGTH)
    code.atomic_add(R0, 0, R1)
    code.label("done")
    code.number(R0, groups.ALLOW)
    code.exit()
    return code.assemble()


def test_program_counts_packets_of_its_group_until_it_is_detached() -> None:
    """The group below counts, one beside it does not; memory shows the count without a system call."""
    need_bpf()
    with Network() as network, unified_group() as group:
        node = network.node()
        inside, beside = group / "one/below", group / "two"
        inside.mkdir(parents=True)
        beside.mkdir()
        with (
            Map.create(ARRAY, "bytes", value_bytes=8, entries_max=1, flags=MAPPABLE) as counts,
            counts.memory() as memory,
            Program.load(counting(counts), EGRESS, "count") as program,
        ):
            program.attach(group / "one", EGRESS)
            sent = send_from_group(inside, node.host, node.outside, "192.0.2.2", 3)
            send_from_group(beside, node.host, node.outside, "192.0.2.2", 5)
            assert struct.unpack_from("=Q", memory) == (sent,)
            program.detach(group / "one", EGRESS)
            program.detach(group / "absent", EGRESS)
            send_from_group(inside, node.host, node.outside, "192.0.2.2", 1)
            assert counts.get(bytes(4)) == struct.pack("=Q", sent)


def test_replaced_program_hands_over_at_once() -> None:
    """Each packet passes the old or the new program, never both."""
    need_bpf()
    with (
        Network() as network,
        unified_group() as group,
        Map.create(ARRAY, "old", value_bytes=8, entries_max=1) as old_counts,
        Map.create(ARRAY, "new", value_bytes=8, entries_max=1) as new_counts,
        Program.load(counting(old_counts), EGRESS, "old") as old,
        Program.load(counting(new_counts), EGRESS, "new") as new,
    ):
        node = network.node()
        old.attach(group, EGRESS)
        new.attach(group, EGRESS, instead_of=old)
        sent = send_from_group(group, node.host, node.outside, "192.0.2.2", 2)
        assert (old_counts.get(bytes(4)), new_counts.get(bytes(4))) == (bytes(8), struct.pack("=Q", sent))


def test_refused_program_carries_the_reason_of_the_verifier() -> None:
    """A read beyond the context, and a jump to a label that is missing."""
    need_bpf()
    code = Assembler()
    code.load(WORD, R0, R1, 4096)
    code.exit()
    with pytest.raises(BpfError, match=r"(?s)load program broken: .*invalid bpf_context access"):
        Program.load(code.assemble(), EGRESS, "broken")
    code.goto("absent")
    with pytest.raises(ValueError, match="label absent is missing"):
        code.assemble()


def test_maps_keep_entries_and_find_the_longest_prefix() -> None:
    """All operations, and the limit of entries."""
    need_bpf()
    with Map.create(HASH, "names", key_bytes=8, value_bytes=4, entries_max=2) as names:
        names.put(b"a" * 8, b"1111")
        names.put(b"b" * 8, b"2222")
        with pytest.raises(BpfError, match="write a map"):
            names.put(b"c" * 8, b"3333")
        assert sorted(names.keys()) == [b"a" * 8, b"b" * 8]
        names.delete(b"a" * 8)
        names.delete(b"a" * 8)
        assert (names.get(b"a" * 8), names.get(b"b" * 8)) == (None, b"2222")
    with Map.create(LPM_TRIE, "prefixes", key_bytes=8, value_bytes=4, entries_max=9) as trie:
        trie.put(struct.pack("=I4B", 8, 10, 0, 0, 0), b"ten.")
        trie.put(struct.pack("=I4B", 16, 10, 1, 0, 0), b"one.")
        assert trie.get(struct.pack("=I4B", 32, 10, 1, 2, 3)) == b"one."
        assert trie.get(struct.pack("=I4B", 32, 10, 9, 2, 3)) == b"ten."
        assert trie.get(struct.pack("=I4B", 32, 11, 9, 2, 3)) is None
    with pytest.raises(BpfError):
        Map.open(Path("/absent"), value_bytes=4)
