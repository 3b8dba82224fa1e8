"""Conversion between the messages of the protos and the values of the domain."""
