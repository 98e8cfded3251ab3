"""Inspections of `puna doctor`: each module reads one part of a machine or cluster; `cli/core/doctor` assesses it."""
