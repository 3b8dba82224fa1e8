"""Who may ask, how much and for how long, and what the access log tells of it."""
