"""Audit logs: the chain of lines, the file of several writers, and acts outside of gateways."""
