"""Measured comparisons with peers; see METHODOLOGY.md."""
