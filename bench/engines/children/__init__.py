"""Other engines and the machine's limits as child processes, each in its own environment."""
