"""The connection to the controller: reports go out, directives come in."""
