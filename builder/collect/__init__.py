"""What nobody needs any more in the store and on the engine: found from the locks that are left, and removed."""
