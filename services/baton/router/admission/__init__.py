"""Whether a request that can be placed is: by predictions, by what outcomes have taught, and by tenants' shares."""
