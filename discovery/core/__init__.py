"""Pure membership: reports in, inventory out."""
