"""Whose fault it is: evidence, the table, and what a fault does to a job."""
