"""Virtual time: a clock that jumps, processes that stop anywhere, and an API server without sockets."""
