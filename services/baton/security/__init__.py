"""Who may talk to whom: the deployment's certificate authority, TLS between its processes, and tokens to join it."""
