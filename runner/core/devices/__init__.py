"""What the devices of a node are, and how much of each is free. Pure."""
