"""Limits of pods without a link of their own: programs at their control groups drop what is above the rate."""
