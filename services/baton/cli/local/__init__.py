"""The processes of `baton up` on this machine: which there are, their ports, cores and lives."""
