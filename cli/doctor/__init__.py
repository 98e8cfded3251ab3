"""The looking half of `puna doctor`: each module asks one part of machine or cluster; `cli/core/doctor` judges."""
