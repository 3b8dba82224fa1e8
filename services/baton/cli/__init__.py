"""The command line: `baton up | serve ROLE | chat | plan | nodes`."""
