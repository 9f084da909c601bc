"""The policy that holds now, while texts come and go."""

from __future__ import annotations

from muster.fleet.configtext import ConfigTextError
from muster.fleet.health.policytext import default_policy, read_policy


class PolicyInUse:
    """The policy that holds now: a text with errors changes nothing but `problems`."""

    def __init__(self) -> None:
        self.policy = default_policy()
        self.problems = ""
        """What is wrong with the text that was given last; empty where it holds."""

    def replace(self, text: str, file: str) -> bool:
        """Take a new text; False, and the old policy stays, where it has errors."""
        try:
            self.policy, self.problems = read_policy(text, file), ""
        except ConfigTextError as error:
            self.problems = str(error)
        return not self.problems
