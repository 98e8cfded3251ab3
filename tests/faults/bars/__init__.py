"""Reliability bars at full strength (`make faults`): faults under an open-loop load, and figures that are judged."""
