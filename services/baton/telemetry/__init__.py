"""Telemetry: every span and metric name, tracing, metrics, logging."""
