"""Rules over recipe, lock and host that refuse a stack before anything is built."""
