"""A node among others: its registration with routers, its blocks told to cache indexes, its description."""
