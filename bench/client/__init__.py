"""Asks servers that speak OpenAI's API, as users do, and keeps what came when."""
