"""Identities of the cluster's processes: roles, certificates and their files, and the calls that a role may make."""
