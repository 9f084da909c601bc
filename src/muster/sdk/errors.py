"""Errors that the SDK raises."""


class StaleAttempt(Exception):
    """The job has continued without this process: its attempt is over, and its results do not count.

    The program must stop.
    """


class ControllerUnavailable(Exception):
    """The controller did not confirm a checkpoint within the deadline. The files are written, but may not count."""
