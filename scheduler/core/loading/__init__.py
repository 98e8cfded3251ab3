"""One load of one model, from the first caller who asks to a replica that is ready."""
