"""Fixtures for every test."""

import signal

from hypothesis import settings

pytest_plugins = ["tests.support.controlplane"]

# A shell starts what runs in its background with SIGINT ignored, and children inherit that: no Ctrl-C to test there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("muster", deadline=None, print_blob=True)  # no test asserts how long something takes
settings.load_profile("muster")
