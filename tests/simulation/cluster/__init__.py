"""A whole cluster in virtual time: the services' own code, connected by a network that delays, cuts and kills."""
