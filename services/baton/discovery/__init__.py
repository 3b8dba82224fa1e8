"""Discovery: which addresses a service has, fixed ones or those of its pods in Kubernetes."""
