"""Where weights come from and lie: names of models, and the hub's cache of this machine."""
