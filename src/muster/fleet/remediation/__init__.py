"""Remediation: from what is found on a node to a node that is trusted again, or to a person."""
