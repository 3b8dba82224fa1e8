"""How commands print: consoles, tables, quantities."""
