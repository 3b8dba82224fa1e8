"""Runners: the only modules that know a framework. One file per framework, one contract in `base`."""
