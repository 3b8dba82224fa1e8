"""Configuration: how a service's settings class is filled, and how a wrong key is reported."""
