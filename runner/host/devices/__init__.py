"""The devices of the node: found, tested, watched."""
