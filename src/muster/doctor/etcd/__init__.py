"""Findings about etcd: disk, quota, alarms, leaders and Events; and settings for a planned size."""
