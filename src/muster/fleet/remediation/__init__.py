"""Remediation: takes faulty nodes out of use, repairs them, and returns them after a test or hands them over."""
