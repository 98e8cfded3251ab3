"""Decisions of the command line: values in, values out."""
