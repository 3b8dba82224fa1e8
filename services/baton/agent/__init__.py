"""The agent: runs a worker on a bare machine and keeps it alive. Its child processes also serve `baton up`."""
