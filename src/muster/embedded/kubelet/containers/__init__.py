"""Containers as processes: started, probed, limited, ended."""
