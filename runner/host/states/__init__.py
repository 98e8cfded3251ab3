"""Saved states of the node's runners: in RAM of this process, on its disk, and the connections to the runners."""
