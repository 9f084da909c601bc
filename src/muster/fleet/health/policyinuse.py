"""The policy in use while its text changes."""

from __future__ import annotations

from muster.api.configtext import ConfigTextError
from muster.fleet.health.policytext import default_policy, read_policy


class PolicyInUse:
    """The policy in use. An invalid text changes only `problems`."""

    def __init__(self) -> None:
        self.policy = default_policy()
        self.problems = ""
        """The problems of the latest text; "" if it is valid."""

    def replace(self, text: str, file: str) -> bool:
        """Use a new text. Returns False and keeps the old policy if the text is not valid."""
        try:
            self.policy, self.problems = read_policy(text, file), ""
        except ConfigTextError as error:
            self.problems = str(error)
        return not self.problems
