"""What is asked and what comes back, in no dialect. Values and their limits."""
