"""Weights from machine to machine: the service that gives files, and the fetch that takes them."""
