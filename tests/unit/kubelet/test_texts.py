"""What happens to text on its way into a container: expansion of variables, translation of paths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.embedded.kubelet.containers.expansion import expand
from muster.embedded.kubelet.containers.translate import PathTranslator


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y2"),
        ("$(NONE)", "$(NONE)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$", "$"),
        ("$A ${A}", "$A ${A}"),
        ("$(A", "$(A"),
        ("trailing $", "trailing $"),
        ("$(LOOP)", "$(A)"),
        ("$()", "$()"),
    ],
)
def test_expansion(text: str, result: str) -> None:
    assert expand(text, {"A": "1", "B": "2", "LOOP": "$(A)"}) == result


@pytest.mark.slow
@given(st.text(alphabet=st.characters(exclude_characters="$")), st.dictionaries(st.text(), st.text()))
def test_text_without_dollars_never_changes(text: str, variables: dict[str, str]) -> None:
    assert expand(text, variables) == text


TRANSLATOR = PathTranslator({"/data": "/real/d", "/data/sub/": "/real/s", "/etc/app.conf": "/real/c", "/": "/nowhere"})


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("/data", "/real/d"),
        ("/data/", "/real/d/"),
        ("/data/x/y", "/real/d/x/y"),
        ("/data/sub", "/real/s"),
        ("/data/subway", "/real/d/subway"),
        ("/database", "/database"),
        ("/data-old /data.txt", "/data-old /data.txt"),
        ("see /data.", "see /real/d."),
        ("--out=/data/x", "--out=/real/d/x"),
        ("a:/data/b:/usr/data", "a:/real/d/b:/usr/data"),
        ("./data ~/data $HOME/data ${X}/data ../data", "./data ~/data $HOME/data ${X}/data ../data"),
        ("file:///data/x", "file:///real/d/x"),
        ("http://host/data", "http://host/data"),
        ("cat '/data/a' > \"/data/b\"", "cat '/real/d/a' > \"/real/d/b\""),
        ("/etc/app.conf /etc/app.conf.d", "/real/c /etc/app.conf.d"),
        ("", ""),
    ],
)
def test_translation(text: str, result: str) -> None:
    assert TRANSLATOR.text(text) == result


def test_a_real_path_below_a_mount_path_is_not_translated_again() -> None:
    assert PathTranslator({"/tmp": "/tmp/state/v/tmp"}).text("/tmp/x") == "/tmp/state/v/tmp/x"
