"""Runs in which everything under the lease works together: teams, balloons, joins and scaling beside gangs."""
