"""The `puna` command: a cluster on one machine, and a view of any cluster from a terminal."""
