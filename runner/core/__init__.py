"""Pure decisions of runners and hosts."""
