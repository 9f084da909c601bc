"""Repairs: pods that reset or reboot a machine, and providers that replace it."""
