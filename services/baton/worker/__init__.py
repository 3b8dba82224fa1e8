"""The process of a node: hosts prefill, decode or both, tells health, rests with its machine, drains."""
