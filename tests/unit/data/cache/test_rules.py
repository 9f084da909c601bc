"""The rules of the cache, with a clock of the test's own."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.data.cache.accounts import MAX_JOBS, OTHER, Accounts
from muster.data.cache.blocks import Block, StoreIdentity
from muster.data.cache.health import DiskHealth, allowed_s
from muster.data.cache.leases import MAX_LEASES, Leases
from muster.data.cache.opening import drop_ambient_credentials, place_of
from muster.data.cache.program import parse
from muster.data.cache.rates import MAX_RATES, Rates, TooManyRates
from muster.data.cache.trust import Trust, Who
from muster.sdk.data.errors import Forbidden, ObjectChanged, Unavailable
from muster.sdk.data.store import ObjectInfo
from muster.sdk.data.wire import BLOCK_BYTES, block_count, block_range


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_issue_4779_slow_disk_is_bypassed_and_comes_back(clock: Clock) -> None:
    """juicedata/juicefs 4779: a slow cache disk was shut off for ever."""
    disk = DiskHealth(clock)
    slow_s = allowed_s(1 << 20) + 1
    disk.record(1 << 20, slow_s)
    disk.record(1 << 20, slow_s)
    disk.record(1 << 20, 0.1)  # a single fast one: not slow in a row
    disk.record(1 << 20, slow_s)
    disk.record(1 << 20, slow_s)
    assert disk.usable
    disk.record(1 << 20, slow_s)
    assert not disk.usable
    assert disk.reason.startswith("slow")
    trials = 0
    while not disk.usable:
        clock.now_s += 1
        if disk.trial_due():
            trials += 1
            disk.passed(1 << 20, slow_s if trials <= 3 else 0.1)
        assert clock.now_s < 5000, "it never comes back"
    assert trials == 5
    assert disk.bypasses == 1


def test_trials_of_a_broken_disk_become_rarer_but_never_end(clock: Clock) -> None:
    disk = DiskHealth(clock)
    disk.fail("EIO")
    waits = []
    for _ in range(12):
        began_s = clock.now_s
        while not disk.trial_due():
            clock.now_s += 1
        waits.append(clock.now_s - began_s)
        disk.fail("EIO")
    assert waits == sorted(waits)
    assert waits[0] <= 10
    assert waits[-1] == waits[-2] <= 300


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 10_000), st.floats(0, 2)), min_size=1, max_size=50), st.integers(1000, 9000))
def test_job_never_gets_more_than_its_rate(uses: list[tuple[int, float]], rate: int) -> None:
    clock = Clock()
    rates = Rates(clock)
    rates.set("job", rate)
    began_s, total, pause_s = clock.now_s, 0, 0.0
    for count, idle_s in uses:
        clock.now_s += idle_s + pause_s
        pause_s = rates.take("job", count)
        total += count
    assert total <= rate * (clock.now_s + pause_s - began_s + 0.25) + 1
    assert rates.take("another", 1 << 30) == 0


def test_rates_are_bounded_and_can_be_removed(clock: Clock) -> None:
    rates = Rates(clock)
    for number in range(MAX_RATES):
        rates.set(f"job-{number}", 1000)
    with pytest.raises(TooManyRates):
        rates.set("one-more", 1000)
    rates.set("job-0", 0)
    rates.set("one-more", 1000)
    assert (rates.get("job-0"), rates.get("one-more")) == (0, 1000)


def test_accounts_are_bounded_and_lose_no_bytes() -> None:
    accounts = Accounts()
    accounts.enter("stays", "ns/stays")
    for number in range(MAX_JOBS * 2):
        accounts.enter(f"job-{number}", f"ns/job-{number}")
        accounts.charge(f"job-{number}", "bucket", 10)
        accounts.leave(f"job-{number}")
    found = accounts.all()
    assert len(found) <= MAX_JOBS + 1
    assert sum(account.bucket for account in found.values()) == MAX_JOBS * 20
    assert found["stays"].readers == 1
    assert found[f"job-{MAX_JOBS * 2 - 1}"].bucket == 10
    assert found[OTHER].bucket > 0


def test_accounts_full_of_readers_charge_others_together() -> None:
    accounts = Accounts()
    for number in range(MAX_JOBS + 5):
        accounts.enter(f"job-{number}", "")
        accounts.charge(f"job-{number}", "disk", 1)
    assert len(accounts.all()) == MAX_JOBS + 1
    assert accounts.all()[OTHER].disk == 5


def test_leases_end_with_their_connection_and_are_bounded() -> None:
    leases = Leases()
    first, second = leases.holder(), leases.holder()
    number = first.take("block")
    second.take("block")
    first.end(number)
    first.end(number)
    assert "block" in leases
    second.end_all()
    assert "block" not in leases
    for index in range(MAX_LEASES + 1):
        first.take(f"block-{index}")
    assert "block-0" not in leases
    assert len(leases) == MAX_LEASES


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 10 * BLOCK_BYTES))
def test_blocks_cover_an_object_without_gaps(size: int) -> None:
    pieces = [block_range(size, number) for number in range(block_count(size))]
    assert [piece.start for piece in pieces] == [sum(each.length for each in pieces[:at]) for at in range(len(pieces))]
    assert sum(piece.length for piece in pieces) == size
    with pytest.raises(ValueError, match="has no block"):
        block_range(size, len(pieces))


TEXTS = st.text(max_size=5)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.builds(Block, TEXTS, TEXTS, TEXTS, st.integers(1, 3), st.integers(0, 3), TEXTS), unique=True, max_size=20
    )
)
def test_different_blocks_have_different_names(blocks: list[Block]) -> None:
    assert len({block.name for block in blocks}) == len(blocks)


IDENTITIES = st.builds(StoreIdentity, st.sampled_from(["s3", "az"]), *[st.sampled_from(["", "x", "y"])] * 4)


@settings(max_examples=30, deadline=None)
@given(st.lists(IDENTITIES, unique=True, max_size=20))
def test_azure_accounts_regions_and_endpoints_are_different_stores(identities: list[StoreIdentity]) -> None:
    names = {Block(identity.text, "key", "etag", 1, 0).name for identity in identities}
    assert len(names) == len(identities)


def test_prefix_of_the_url_and_key_name_the_same_object() -> None:
    schemes = frozenset({"s3"})
    deep = place_of({"url": "s3://bucket/a/b/"}, {}, schemes)
    flat = place_of({"url": "s3://bucket"}, {}, schemes)
    assert deep.identity == flat.identity
    assert (deep.full("c"), deep.relative("a/b/c"), flat.full("a/b/c")) == ("a/b/c", "c", "a/b/c")


def test_credentials_of_the_node_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a store without settings of its own could use them, or the endpoint beside them."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "GOOGLE_SERVICE_ACCOUNT", "AZURE_CLIENT_ID", "OTHER"):
        monkeypatch.setenv(name, "x")
    drop_ambient_credentials()
    assert [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "AZURE_"))] == []
    assert os.environ["OTHER"] == "x"


TARGET = ("store", "key", "v1")


class Asked:
    """A store that answers HEAD as the test says, and counts."""

    def __init__(self) -> None:
        self.count = 0
        self.answer: Exception | str = "v1"

    async def __call__(self) -> ObjectInfo:
        self.count += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return ObjectInfo("key", 1, self.answer)


async def refused(trust: Trust, who: Who, ask: Any, error: type[Exception], target: Any = TARGET) -> None:
    with pytest.raises(error):
        await trust.check(who, target, "owner", ask)


async def test_answers_of_the_store_count_briefly(clock: Clock) -> None:
    trust, ask = Trust(clock), Asked()
    who = Who("uid:1", False, trust.fingerprint("store", {"KEY": "1"}))
    await trust.check(who, TARGET, "owner", ask)
    clock.now_s += 59
    ask.answer = Forbidden("no")
    await trust.check(who, TARGET, "owner", ask)
    assert ask.count == 1
    clock.now_s += 2
    await refused(trust, who, ask, Forbidden)
    await refused(trust, who, ask, Forbidden)
    assert ask.count == 2
    ask.answer = "v1"
    clock.now_s += 6
    await trust.check(who, TARGET, "owner", ask)


async def test_answers_count_longer_while_the_store_is_away(clock: Clock) -> None:
    """A bucket that is away for ten minutes does not stop training from the cache."""
    trust, ask = Trust(clock), Asked()
    who, stranger = (Who("uid:1", False, trust.fingerprint("store", {"KEY": key})) for key in "12")
    await trust.check(who, TARGET, "owner", ask)
    ask.answer = Unavailable("away")
    clock.now_s += 600
    await trust.check(who, TARGET, "owner", ask)
    await refused(trust, stranger, ask, Unavailable)
    clock.now_s += 1800
    await refused(trust, who, ask, Unavailable)


async def test_only_a_proven_job_hits_without_a_question(clock: Clock) -> None:
    trust, ask = Trust(clock), Asked()
    ask.answer = Forbidden("no")
    await trust.check(Who("job", True, "f1"), TARGET, "job", ask)
    await refused(trust, Who("job", False, "f2"), ask, Forbidden)
    await refused(trust, Who("another", True, "f3"), ask, Forbidden)
    trust.granted(Who("another", True, "f4"), TARGET)
    await trust.check(Who("another", True, "f5"), TARGET, "job", ask)
    await refused(trust, Who("another", True, "f5"), ask, Forbidden, ("store", "key", "v2"))


async def test_other_version_of_the_object_is_not_given(clock: Clock) -> None:
    trust, ask = Trust(clock), Asked()
    ask.answer = "v2"
    await refused(trust, Who("uid:1", False, "f"), ask, ObjectChanged)


def test_fingerprints_differ_by_store_and_by_process() -> None:
    trust, other = Trust(), Trust()
    values = {"AWS_SECRET_ACCESS_KEY": "secret"}
    texts = [trust.fingerprint("a", values), trust.fingerprint("b", values), other.fingerprint("a", values)]
    assert len(set(texts)) == 3
    assert trust.fingerprint("a", values) == texts[0]
    assert not any("secret" in text for text in texts)


@pytest.mark.parametrize(
    ("text", "expected"), [("1", 1), ("2k", 2000), ("3Ki", 3072), ("1Gi", 1 << 30), ("2T", 2 * 10**12)]
)
def test_sizes_have_units_of_kubernetes(text: str, expected: int) -> None:
    options = parse(["--node=n", "--state-dir=/s", "--socket-dir=/k", f"--size={text}"])
    assert options.limits.size_bytes == expected


@pytest.mark.parametrize("arguments", [["--size=1Ei2"], ["--floor=101%"], ["--floor=x"], ["--size=-1"]])
def test_wrong_sizes_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(["--node=n", "--state-dir=/s", "--socket-dir=/k", *arguments])
    assert caught.value.code == 2
    assert "is not a size" in capsys.readouterr().err
