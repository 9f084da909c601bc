"""Commands about the ranks of a job: logs, exec, stacks."""
