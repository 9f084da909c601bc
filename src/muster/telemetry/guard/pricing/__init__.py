"""The price of an operation: series, samples, memory; from the state of the server and bounded probes."""
