"""What a runner is started with, and what that takes of memory. Pure."""
