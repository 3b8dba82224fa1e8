"""The engine: scheduler, sampling, run loop and output of one model on one device."""
