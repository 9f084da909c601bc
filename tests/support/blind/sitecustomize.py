"""Makes each Python process below a blind test run read and write one constant instead of texts for people."""

import importlib.util
import pathlib

_PATH = pathlib.Path(__file__).parents[1] / "textblind.py"
_spec = importlib.util.spec_from_file_location("tests_support_textblind", _PATH)
assert _spec is not None
assert _spec.loader is not None
_textblind = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_textblind)
_textblind.install(_textblind.constant)
