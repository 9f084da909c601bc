"""The order of gangs that wait, and who may run before them."""
