"""Child processes of the host: started, observed, ended."""
