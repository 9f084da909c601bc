"""Schedules gangs: groups pods into gangs, places each gang as a whole, and explains why a gang waits."""
