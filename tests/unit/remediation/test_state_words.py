"""The state of a session in its new word, and in the word that earlier versions read and write."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from muster.api.node_remediation import NodeRemediationStatus
from muster.kube.objects.struct import decode, encode

STATES = [("Open", "Open"), ("Released", "Released"), ("NeedsOperator", "Handed")]


class EarlierStatus(msgspec.Struct, rename="camel", omit_defaults=True):
    """The fields of an earlier version that hold words: it cannot decode others."""

    phase: Literal["Open", "Released", "Handed"] = "Open"
    rung: str = "Observe"


@pytest.mark.parametrize(("state", "phase"), STATES)
def test_earlier_version_decodes_what_this_version_writes_after_a_rollback(state: str, phase: str) -> None:
    assert decode(encode(NodeRemediationStatus(state=state)), EarlierStatus).phase == phase


@pytest.mark.parametrize(("state", "phase"), STATES)
def test_status_of_an_earlier_version_is_read_in_the_new_word(
    state: str, phase: Literal["Open", "Released", "Handed"]
) -> None:
    assert decode(msgspec.json.encode(EarlierStatus(phase=phase)), NodeRemediationStatus).state == state


def test_phase_follows_each_change_of_state() -> None:
    status = NodeRemediationStatus(state="NeedsOperator")
    status = msgspec.structs.replace(status, state="Released")
    assert status.phase == "Released"


def test_state_of_a_later_version_can_be_read() -> None:
    assert decode(b'{"state": "Paused", "phase": "Open"}', NodeRemediationStatus).state == "Paused"
