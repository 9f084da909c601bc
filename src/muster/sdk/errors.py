"""Errors that the SDK raises."""


class StaleAttempt(Exception):
    """The job has gone on without this process: its attempt is over and nothing it writes counts. Stop."""


class ControllerUnavailable(Exception):
    """The controller did not confirm a checkpoint within the deadline. The files are written; the commit is open."""
