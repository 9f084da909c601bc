"""Virtual time for simulations: an event loop whose clock jumps, processes that can be killed, no real sockets."""
