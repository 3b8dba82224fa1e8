"""Why requests ran where they ran: decisions that are remembered, the answer to who asks, and metrics of the errors."""
