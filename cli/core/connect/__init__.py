"""The table of client programs, and the functions over it. Pure."""
