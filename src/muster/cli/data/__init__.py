"""Commands about training data: `muster data ls|warm|status|evict`."""
