"""Parts of Baton measured from inside, in child processes: the one room of bench that imports baton.engine."""
