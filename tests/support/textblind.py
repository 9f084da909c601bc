"""Runs seeds and tests without the texts for people: `python -m tests.support.textblind --help`.

In a blind run, a token replaces each text as soon as it is in an object. Equal texts have equal tokens, so a controller
still sees that a text changed; nothing else of it can be read. One constant for all texts would take away the writes
that change only a text, and with them the timing of all later requests. The two runs of a seed must have the same
outcome, and the same requests and answers if texts are left out.

Tests (`--tests`) run with one constant instead of tokens, also in the processes that they start. A test that compares a
text must then fail. All others must pass.

The process that runs blind must call `install` before it imports an object of ours: classes of objects are changed as
they are created.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import msgspec

PREFIX: Final = "text-"
_ROOT: Final = Path(__file__).parents[2]
NAMES: Final = ("message", "why", "summary", "headline", "suspicion")
"""What fields with texts for people are called."""
MORE: Final = frozenset(
    {"muster.api.node_remediation.RemediationRequest.reason", "muster.api.node_remediation.RemediationStep.reason"}
)
"""Texts for people in fields with other names."""
NOT_FOR_PEOPLE: Final = {
    "muster.kube.errors.Status.message": "an API server's answer, which has no typed field for some refusals",
    "muster.kube.objects.container.ContainerStateTerminated.message": "a container's record of its end",
    "muster.kube.objects.container.ContainerStateWaiting.message": "written by a kubelet",
    "muster.kube.objects.node.NodeCondition.message": "written by a kubelet; remediation compares its own for equality",
    "muster.kube.objects.pod.PodStatus.message": "written by a kubelet; rows of the fault table match it",
    "muster.trainingjobs.faults.rules.Evidence.message": "a program's last lines; rows of the fault table match them",
    "muster.scheduler.explain.why_waiting.Explanation.why": "a name of the enumeration Why",
    "muster.scheduler.plan.RemoveMember.why": "a name, used as a label of a metric",
}
"""Fields of these names that programs read, with the reason."""
COMPARE_TEXTS: Final = frozenset(
    {
        "tests.scenarios.fleet.test_joins.test_the_pace_falls_when_the_api_server_refuses_requests",
        "tests.scenarios.remediation.test_remediation.test_a_broken_node_is_emptied_rebooted_tested_and_given_back",
        "tests.scenarios.scheduler.test_eviction.test_a_gang_that_two_budgets_cover_is_not_touched",
        "tests.scenarios.scheduler.test_upstream_workloads.test_a_group_of_two_jobs_starts_when_the_second_one_comes_114",
        "tests.scenarios.teams.test_nodes_health.test_deciding_rule_is_named_with_its_line",
        "tests.unit.agent.checks.test_sights.test_texts_of_a_sick_device_stay_one_short_line",
        "tests.unit.fleet.test_joins_controller.test_each_cause_of_an_overload_gets_an_event",
        "tests.unit.gputest.test_command.test_the_program_stands_alone_and_starts_without_its_libraries",
        "tests.unit.kube.test_events.test_event_forgotten_by_the_server_is_created_again",
        "tests.unit.kube.test_events.test_many_different_messages_become_one",
        "tests.unit.kube.test_events.test_one_object_cannot_flood_the_api_server_and_others_are_still_heard",
        "tests.unit.kube.test_events.test_the_same_event_again_only_counts",
        "tests.unit.remediation.test_observing.test_a_dry_run_says_what_budgets_would_allow_and_does_nothing",
        "tests.unit.trainingjobs.test_faults.test_the_page_is_what_the_table_says",
        "tests.unit.trainingjobs.test_messages.test_last_lines_of_a_rank_are_written_out_in_status_and_events",
    }
)
"""Tests that compare or count texts, or look at imports, where the failure shows no text."""
_ANNOTATIONS: Final = ("muster.dev/refusal", "muster.dev/quarantine-record")


def token(text: str) -> str:
    """Return what stands for a text: the same for the same text, and itself for a token."""
    if not text or text.startswith(PREFIX):
        return text
    return PREFIX + hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def constant(text: str) -> str:
    """Return the constant that stands for all texts; "" stays "", because it says that there is no text."""
    return PREFIX if text else ""


def install(blinded: Callable[[str], str] = token) -> None:
    """Replace texts in all objects that this process makes or reads from now on by what `blinded` returns for them."""
    assert "muster.kube.objects.struct" not in sys.modules, "objects were imported before"

    class Blind(msgspec.Struct):
        def __init_subclass__(cls, **options: Any) -> None:
            super().__init_subclass__(**options)
            fields = texts_of(cls)
            if fields:
                cls.__post_init__ = _blinding(fields, blinded, cls.__dict__.get("__post_init__"))  # type: ignore[attr-defined]

    msgspec.Struct = Blind  # type: ignore[misc]
    from muster.trainingjobs.status import builder

    shortened = builder.shortened
    builder.shortened = lambda text, *most: blinded(shortened(text, *most))


def texts_of(cls: type) -> tuple[str, ...]:
    """Return the fields of a class of ours that hold a text for people."""
    fields = []
    for name, kind in inspect.get_annotations(cls).items():
        path = f"{cls.__module__}.{cls.__name__}.{name}"
        text = path in MORE or (name in NAMES and re.search(r"\bstr\b", str(kind)) and path not in NOT_FOR_PEOPLE)
        if text and path.startswith("muster."):
            fields.append(name)
    return tuple(fields)


def _blinding(
    fields: tuple[str, ...], blinded: Callable[[str], str], own: Callable[[Any], None] | None
) -> Callable[[Any], None]:
    def __post_init__(self: Any) -> None:
        for name in fields:
            text = getattr(self, name)
            if isinstance(text, str):
                msgspec.structs.force_setattr(self, name, blinded(text))
        if own is not None:
            own(self)

    return __post_init__


def without_texts(value: Any) -> Any:
    """Return a decoded body with all texts for people left out, also in the records that a string holds as JSON."""
    if isinstance(value, list):
        return [without_texts(each) for each in value]
    if isinstance(value, str):
        return without_texts(msgspec.json.decode(value)) if _holds_json(value) else value
    if not isinstance(value, dict):
        return value
    entry = "rung" in value and "event" in value
    request = "action" in value and "by" in value
    return {
        key: without_texts(each)
        for key, each in value.items()
        if not (key in NAMES or key in _ANNOTATIONS or (key == "reason" and (entry or request)))
    }


def _holds_json(text: str) -> bool:
    if not text.startswith(("{", "[")):
        return False
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return True


def _comparable(body: bytes) -> bytes:
    """Return a body in the form that is compared. Metrics and logs are not JSON: they stay as they are."""
    try:
        return json.dumps(without_texts(msgspec.json.decode(body))).encode()
    except msgspec.DecodeError:
        return body


def run(options: argparse.Namespace, seed: int) -> dict[str, str]:
    """Run one seed; return its outcome and the hash of its trace without texts."""
    if options.blind:
        install()
    from fuzz.fleet.machines import own_source
    from fuzz.modes import Mode
    from muster.embedded.apiserver.request import Request

    seen = hashlib.blake2b(digest_size=16)

    def saw(now: float, client: str, request: Request, code: int, body: bytes) -> None:
        seen.update(f"{now!r} {client} {request.method} {request.path} {code} ".encode())
        for each in (request.body, body):
            seen.update(_comparable(each))

    mode = Mode(health=True) if options.health else Mode(source=own_source()) if options.fleet else Mode()
    outcome = mode.run(seed, saw)
    return {"violation": outcome.violation or "", "requests": str(outcome.requests), "trace": seen.hexdigest()}


def compare(arguments: list[str], seed: int) -> str:
    """Run a seed with and without texts, each in a process of its own; return how they differ, "" if they do not."""
    found = []
    for blind in ([], ["--blind"]):
        command = [sys.executable, "-m", "tests.support.textblind", *arguments, *blind, "--seed", str(seed)]
        done = subprocess.run(
            command, env={"PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=False, cwd=_ROOT
        )
        if done.returncode:
            return f"seed {seed}: {done.stderr[-2000:]}"
        found.append(json.loads(done.stdout.splitlines()[-1]))
    if found[0]["violation"]:
        return f"seed {seed}: {found[0]['violation']}"
    return "" if found[0] == found[1] else f"seed {seed}: with texts {found[0]}, without {found[1]}"


def tests(paths: list[str]) -> int:
    """Run tests with a constant instead of each text; return 1 if one fails that compares no text, else 0."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        blind = {"PYTHONPATH": str(_ROOT / "tests/support/blind"), "PYTHONHASHSEED": "0"}
        chosen = ["-n", "4", "--dist", "loadfile", "-k", "not real", "-q", "--junitxml", str(report), *paths]
        subprocess.run([sys.executable, "-m", "pytest", *chosen], env=os.environ | blind, check=False, cwd=_ROOT)
        cases = list(ElementTree.parse(report).iter("testcase"))
    failed = {
        f"{case.get('classname')}.{case.get('name')}": "\n".join(
            ElementTree.tostring(each, "unicode") for each in found
        )
        for case in cases
        if (found := [*case.iter("failure"), *case.iter("error")])
    }
    others = [name for name, why in failed.items() if PREFIX not in why and name.partition("[")[0] not in COMPARE_TEXTS]
    print("\n".join(others))
    print(f"{len(cases)} tests: {len(failed)} compare a text, of these {len(others)} only perhaps")
    return 1 if others or not cases else 0


def main(arguments: list[str]) -> int:
    """Return 1 if a seed differs, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.textblind", description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    parser.add_argument("--fleet", action="store_true", help="as of python -m fuzz")
    parser.add_argument("--health", action="store_true", help="as of python -m fuzz")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="run these tests instead of seeds")
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--blind", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.tests:
        return tests(options.tests)
    if options.seed is not None:
        print(json.dumps(run(options, options.seed)))
        return 0
    kind = ["--health"] if options.health else ["--fleet"] if options.fleet else []
    differ = [text for seed in range(options.first, options.first + options.seeds) if (text := compare(kind, seed))]
    print("\n".join(differ) or f"{options.seeds} seeds: the same with and without texts")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
