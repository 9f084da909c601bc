"""The ConfigMap muster-preflight: what is wrong with it is said by line."""

from __future__ import annotations

import re

import pytest

from muster.api.configtext import ConfigTextError
from muster.fleet.preflight import config
from muster.fleet.preflight.config import parse_config


def test_the_text_that_documents_it_can_be_read_and_is_what_counts_by_default() -> None:
    assert config.__doc__ is not None
    text = config.__doc__.split("\n\n", 1)[1]
    read = parse_config(text)
    assert read == parse_config(f"image: {read.image}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: image: missing"),
        ("image: a\nbackend: amd", "line 2: backend: no back end 'amd'"),
        ("image: a\nlevels: {boot: 4}", "Invalid enum value 4"),
        ("image: a\nlevel: 1", "line 2: level: unknown field; did you mean levels?"),
        ("image: a\natOnce: 0", "line 2: atOnce: 0 is not possible"),
        ("image: a\nretests: {atOnce: -1}", "line 2: retests.atOnce: -1"),
        ("image: a\nretests: {everyHours: 0}", "line 2: retests.everyHours: 0"),
        ("image: a\nstartSeconds: 1", "line 2: startSeconds: 1"),
        ("image: a\ntolerations:\n- {operator: Exists}", "line 3: tolerations[0]: has no key"),
        ("image: a\ntolerations:\n- {key: muster.dev/joining}", "muster.dev/joining marks nodes that must stay empty"),
        ("image: a\nresources: {nvidia.com/gpu: 8}", "tests have all GPUs of their node"),
        ("image: a\nresources: {cpu: many}", "line 2: resources.cpu"),
    ],
)
def test_error_is_reported_by_line(text: str, said: str) -> None:
    with pytest.raises(ConfigTextError, match=re.escape(said)):
        parse_config(text)
