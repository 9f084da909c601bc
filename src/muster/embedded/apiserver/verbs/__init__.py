"""What each verb does with a request: get, list, watch, create, update, patch, delete."""
