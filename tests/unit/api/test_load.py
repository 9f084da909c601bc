"""Manifests: what is wrong, on which line, and what to write instead."""

from __future__ import annotations

import json

import pytest

from muster.api.load import ManifestError, load_training_job

HEAD = "apiVersion: muster.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: a}\n"
GOOD = HEAD + "spec:\n  replicas: 2\n  image: x\n  command: [python, train.py]\n"


def complaints(text: str) -> list[str]:
    with pytest.raises(ManifestError) as caught:
        load_training_job(text, "job.yaml")
    return str(caught.value).splitlines()


def test_yaml_and_json_are_the_same() -> None:
    job = load_training_job(GOOD)
    assert (job.name, job.spec.replicas, job.spec.command) == ("a", 2, ("python", "train.py"))
    body = {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "a"},
        "spec": {"replicas": 2, "image": "x", "command": ["python", "train.py"]},
    }
    assert load_training_job(json.dumps(body)) == job


def test_json_escapes_of_an_emoji_are_one_character() -> None:
    """Issue 11: `json.dump` writes them so, and kubectl takes them."""
    body = {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "a"},
        "spec": {"replicas": 1, "image": "x", "command": ["echo", "\U0001f389 done"]},
    }
    assert load_training_job(json.dumps(body)).spec.command == ("echo", "\U0001f389 done")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (GOOD + '  workingDir: "\\ud83c"\n', "8:15: not YAML: an escape encodes half of a character"),
        (GOOD + "  gpuPerNode: 3\n", "8:3: spec.gpuPerNode: unknown field; did you mean gpusPerNode?"),
        (GOOD + "  env:\n  - {name: A, vlue: b}\n", "9:15: spec.env[0].vlue: unknown field; did you mean value?"),
        (
            GOOD + "  env:\n  - {name: A, value: 8}\n",
            "9:22: spec.env[0].value: expected str, got int; put the value in",
        ),
        (GOOD.replace("replicas: 2", "replicas: 0"), "5:13: spec.replicas: expected int >= 1"),
        (GOOD.replace("replicas: 2", "replicas: two"), "5:13: spec.replicas: expected int, got str"),
        (GOOD + "  launcher: slurm\n", "8:13: spec.launcher: invalid enum value 'slurm'"),
        (GOOD + "  replicas: 3\n", "8:3: replicas: given twice, first on line 5; keep one"),
        (GOOD + "  template: {spec: {restartPolicy: Always}}\n", "8:36: spec.template.spec.restartPolicy: cannot be"),
        (GOOD.replace("kind: TrainingJob\n", ""), "1:1: kind: missing; write kind: TrainingJob"),
        (GOOD + "---\n" + GOOD, " 2 documents in it; one TrainingJob is wanted (kubectl apply -f takes several)"),
        ("", " nothing in it; one TrainingJob is wanted"),
        ("- a\n", "1:1: a TrainingJob is a map that starts with apiVersion: ..."),
        (HEAD + "spec: 2026-99-99\n", "4:7: not YAML: 2026-99-99 looks like a timestamp, but is not valid"),
        (HEAD + "spec: [\n", "5:1: not YAML: expected the node content, but found '<stream end>'"),
    ],
)
def test_the_complaint_names_line_and_remedy(text: str, want: str) -> None:
    assert [line for line in complaints(text) if line.startswith(f"job.yaml:{want}")] != []


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("nodes", "replicas"),
        ("numNodes", "replicas"),
        ("nnodes", "replicas"),
        ("size", "replicas"),
        ("numGPUs", "gpusPerNode"),
        ("nprocPerNode", "ranksPerNode"),
        ("slotsPerWorker", "ranksPerNode"),
    ],
)
def test_fields_that_have_other_names_elsewhere_are_suggested_under_ours(theirs: str, ours: str) -> None:
    assert complaints(f"{GOOD}  {theirs}: 4\n") == [f"job.yaml:8:3: spec.{theirs}: unknown field; did you mean {ours}?"]
    assert ours not in complaints(f"{GOOD}  mpi: {{{theirs}: 4}}\n")[0], "only where that field is"


@pytest.mark.parametrize(("kind", "named"), [("Job", "'Job'"), ("[a]", "no name")])
def test_of_another_kind_nothing_but_that_is_said(kind: str, named: str) -> None:
    text = f"apiVersion: batch/v1\nkind: {kind}\nmetadata: {{name: a}}\nspec: {{parallelism: 2, nodes: 3}}\n"
    assert complaints(text) == [
        f"job.yaml:2:7: kind: {named}; a TrainingJob is wanted, other kinds are for kubectl apply -f"
    ]


def test_everything_wrong_is_said_at_once() -> None:
    text = HEAD + "spec:\n  replicas: 1\n  env:\n  - {name: RANK, value: '1'}\n  launcher: none\n  mpi: {}\n"
    said = complaints(text)
    assert len(said) == 4
    assert [line.split(": ")[1] for line in said] == ["spec.command", "spec.image", "spec.env[0].name", "spec.mpi"]
