# Two commands on a fresh machine; each sets up what it needs, says so before it does it, and then calls envbuild or pytest.
.PHONY: quickstart test setup

quickstart:
	@sh .ci/machine
	@sh .ci/venv
	.venv/bin/envbuild make recipes/quickstart.yaml

test: setup
	.venv/bin/python -m pytest

setup:
	@sh .ci/machine tests
	@sh .ci/venv
