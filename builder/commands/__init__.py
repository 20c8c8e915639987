"""The commands, in groups: each asks the road for something and says what came of it; imports only what it needs."""
