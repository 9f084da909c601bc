"""Kinds of pod interfaces: creates, checks and deletes them in the kernel."""
