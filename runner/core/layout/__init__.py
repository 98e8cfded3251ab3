"""Layout of a runner, and the memory that it takes. Pure."""
