"""What leaves envbuild: build contexts, folders of wheels, kits for machines without a network, definition files."""
