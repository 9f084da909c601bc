"""What asks for something to be done about a node."""
