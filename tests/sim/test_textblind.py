"""Controllers decide the same when they cannot read the texts that they wrote for people."""

from __future__ import annotations

import importlib
import subprocess
import sys

import msgspec
import pytest

from muster.api.node_remediation import RemediationStep
from muster.api.training_job_status import Fault, Stall
from muster.scheduler.explain.why_waiting import Explanation
from tests.support import textblind

READ = """
from tests.support import textblind
textblind.install()
from muster.api.node_remediation import RemediationStep
from muster.kube.objects.struct import decode
body = b'{"rung": "Reboot", "time": "2026-03-04T05:06:07Z", "reason": "boot b0", "event": "RebootRequested"}'
print(decode(body, RemediationStep).reason)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("mode", "seed"), [([], 3), (["--fleet"], 3), (["--health"], 3)])
def test_run_has_the_same_outcome_and_trace_without_texts(mode: list[str], seed: int) -> None:
    assert textblind.compare(mode, seed) == ""


def test_blind_process_reads_a_token_instead_of_a_text() -> None:
    done = subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == textblind.token("boot b0")


def test_equal_texts_and_only_they_have_equal_tokens() -> None:
    assert textblind.token("a") == textblind.token("a") != textblind.token("b")
    assert textblind.token(textblind.token("a")) == textblind.token("a")


def test_traces_are_compared_without_texts_only() -> None:
    body = {"message": "x", "reason": "NotEnough", "history": [{"rung": "Drain", "event": "Emptied", "reason": "y"}]}
    assert textblind.without_texts(body) == {
        "reason": "NotEnough",
        "history": [{"rung": "Drain", "event": "Emptied"}],
    }
    assert textblind.without_texts({"data": {"a": '{"why": "x", "owner": "y"}', "b": "{x"}}) == {
        "data": {"a": {"owner": "y"}, "b": "{x"}
    }


def test_each_exception_names_a_text_field_of_a_class_of_ours() -> None:
    for path in [*textblind.MORE, *textblind.NOT_FOR_PEOPLE]:
        owner, _, name = path.rpartition(".")
        module, _, kind = owner.rpartition(".")
        fields = {
            each.name: each.type for each in msgspec.structs.fields(getattr(importlib.import_module(module), kind))
        }
        assert "str" in str(fields[name]), path


def test_fields_are_known_by_their_names() -> None:
    assert textblind.texts_of(Fault) == ("message",)
    assert textblind.texts_of(Stall) == ("suspicion", "message")
    assert textblind.texts_of(RemediationStep) == ("reason",)
    assert textblind.texts_of(Explanation) == ("summary", "headline")
