"""The price of a DaemonSet before its roll-out: recorded requests per pod, times the planned nodes and objects."""
