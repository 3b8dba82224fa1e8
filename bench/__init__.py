"""Measurements of Baton by what is measured; all but `microbench` are clients, which know baton.v1 and no more."""
