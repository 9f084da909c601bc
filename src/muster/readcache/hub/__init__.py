"""The event hub: the objects of one kind, the log of their changes, and the fan-out to any number of watchers.

It has no sockets, threads or wall clock, so that the embedded server and simulations use it too.
"""
