"""Drop rules for unused metrics, and the diff that adds them to the user's configuration."""
