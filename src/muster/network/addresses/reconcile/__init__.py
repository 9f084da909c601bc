"""Compares the store of addresses with the runtime, the kernel and the provider, and frees what none of them uses."""
