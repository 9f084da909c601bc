"""Fixtures for every test."""

import signal

pytest_plugins = ["tests.support.controlplane"]

# A shell starts what runs in its background with SIGINT ignored, and children inherit that: no Ctrl-C to test there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
