"""The command line: `baton up | serve ROLE | chat | plan | nodes`."""

import os

# Read by grpcio when it is imported. Children are executed, not forked: without this every start of one logs a warning.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
