# Two commands do all the set-up on a fresh Debian machine: `make demo` and `make test`.
VENV := .venv
PY := $(VENV)/bin/python
RUST := Cargo.toml Cargo.lock $(shell find rust -name '*.rs' -o -name Cargo.toml)
BLOCKS ?= 40

.PHONY: demo demo-host test test-lab test-long lint docs build bench clean help

help:
	@sed -n 's/^## //p' Makefile

## make demo      set up all, count what security modules and IMA add in guests, write report.html
demo: build
	tools/setup.sh demo
	$(VENV)/bin/excise lab demo -o demo.excise --report report.html

## make demo-host measure Landlock, seccomp and FIPS self-tests on this machine, write host.html
demo-host: build
	rm -rf demo-host.excise
	$(VENV)/bin/excise run examples/syscalls.toml -o demo-host.excise --blocks $(BLOCKS) --seal
	$(VENV)/bin/excise report demo-host.excise -o host.html --beside reference:lsmpmon-2008

## make build     the Python environment, the native module, the static probe
build: $(VENV)/.built

$(VENV)/.built: $(RUST) pyproject.toml
	tools/setup.sh build
	tools/build-probe.sh
	tools/build-guest.sh
	$(VENV)/bin/maturin develop --release --quiet
	touch $@

## make lint      formatting, lints, types, import directions, duplicate checks of both languages
lint: build
	tools/setup.sh test
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	cargo fmt --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings

## make docs      the documentation, warnings as errors
docs: build
	tools/setup.sh docs
	$(VENV)/bin/sphinx-build -q -W --keep-going -b html docs docs/_build/html

## make test      everything but the slower tests: lints, docs, Rust and Python tests
test: lint docs
	cargo test --workspace --quiet
	$(PY) -m pytest -m "not lab" -n 2 --dist loadfile

## make test-lab  the slower tests: kills, a fresh Debian root, fuzzing, guests
test-lab: build
	tools/setup.sh lab
	$(PY) -m pytest -m "lab and not long" -v

## make test-long the longest: campaigns of reboots, fifty connections cut, fifty tracers killed
test-long: build
	tools/setup.sh lab
	$(PY) -m pytest -m long -v

## make bench     figures against peers (benchmarks/RESULTS.md says on which machine)
bench: build
	$(PY) -m benchmarks

clean:
	rm -rf target $(VENV) docs/_build src/excise/_bin src/excise/*.so report.html host.html
	rm -rf demo.excise demo-tpm.excise demo-host.excise
