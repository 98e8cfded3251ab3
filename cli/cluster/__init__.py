"""The one-machine cluster: every service as a process of its own under one supervisor."""
