"""Errors that the SDK raises."""


class StaleAttempt(Exception):
    """The job has continued without this process: its attempt is over, and its results do not count.

    The program must stop.
    """


class ControllerUnavailable(Exception):
    """The controller did not confirm a checkpoint within the deadline. The files are written, but may not count."""


class CheckpointNotSaved(Exception):
    """A checkpoint was not saved, and earlier ones still count. The message names the cause and the fix.

    Attributes:
        temporary: whether a later save may succeed without a change, for example because the object store was away.
    """

    def __init__(self, message: str, temporary: bool = False) -> None:
        super().__init__(message)
        self.temporary = temporary


class NoGoodCheckpoint(Exception):
    """The job has checkpoints, but this process cannot load one. It does not start from step 0 instead."""
