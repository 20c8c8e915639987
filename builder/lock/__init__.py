"""Recipe -> Lock: every package of the stack by exact version and hash."""
