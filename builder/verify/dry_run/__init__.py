"""A pretended GPU: the libraries that play it, and the run of the stack's own host code against it."""
