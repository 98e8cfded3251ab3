"""What builds, checks and feeds the project; nothing here runs in production."""
