"""Baton's own forward pass for dense Llama-like models: fewer and larger products than transformers' model code has.

`support` says which models it can take; `model` is the forward pass, layer by layer.
"""
