"""Accuracy of measured placement: counted, planned and loaded on devices with real limits, against two formulas.

    make placement-grid

A configuration is a model shape, sizes and a set of devices. For each one the engine counts its memory without loading
it, the rule of the planner says whether it fits what the devices have left, and then it is loaded anyway: what the
devices gave out is the truth for every prediction.
"""
