"""Deployments across links of a given rate: the hand-over, and a bare machine that joins. Linux, root."""
