"""The connection to the controller: sends reports and receives directives."""
