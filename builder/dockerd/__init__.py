"""The Docker behind `builder.engine`: docker-py for the plain calls, the engine's own HTTP API for BuildKit."""
