"""Controllers decide the same when they cannot read the texts that they wrote for people."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
