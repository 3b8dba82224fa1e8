"""What a device does for a model.

`choose` picks one of `cuda`, `cpu` and torch's own operations, once per model; `device_ops` is what models ask for.
`eager` holds what torch computes on any device; `pool` the blocks of K and V; `device` says what memory there is.
"""
