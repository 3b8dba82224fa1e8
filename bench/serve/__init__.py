"""`baton bench serve` loads a server: TTFT, TPOT, ITL, throughput, goodput. `compare` draws several runs."""
