"""The Helm chart, and what writes its schema, its table of values and its rendered examples."""
