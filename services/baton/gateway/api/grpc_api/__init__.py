"""The public gRPC API, a view of the same core as the REST APIs."""
