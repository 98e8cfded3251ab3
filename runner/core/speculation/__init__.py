"""Speculation: tokens that are guessed, and evaluated together with the one that is certain. Pure."""
