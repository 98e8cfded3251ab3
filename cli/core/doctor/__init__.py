"""What `puna doctor` makes of what it finds: facts in, findings out. Pure."""
