"""What the core remembers, and what happens to it: state, events, effects."""
