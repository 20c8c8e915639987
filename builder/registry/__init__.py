"""The only door to a registry (OCI distribution specification 1.1); only its `connection` opens connections."""
