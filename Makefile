# `make` alone says what there is.

DIST := target/dist
PREFIX ?= /usr/local
DESTDIR ?=
CARGO := cargo
FUZZ_SECONDS ?= 60
# Most of what tests do is to wait for processes.
TEST_THREADS ?= $(shell echo $$(($$(nproc) + 4)))
PYTHON_ENVIRONMENT := target/python

.PHONY: help build install demo test test-all chaos fuzz lint deny bench dependencies test-dependencies \
	programs wrapper shells python clean

help:
	@echo 'make build      build everything into $(DIST)'
	@echo 'make install    install it under PREFIX (now $(PREFIX)); DESTDIR is honoured'
	@echo 'make demo       build, and show a gated build from first exec to audit'
	@echo 'make test       build, and run all checks and tests'
	@echo 'make test-all   the long ones too: the shells'"'"' own test suites, and real work, under the gate'
	@echo 'make chaos      kills, full disks and bad networks during 10,000 execs, and what became of each (minutes)'
	@echo 'make fuzz       what reads the bytes of others, under a fuzzer, FUZZ_SECONDS (now $(FUZZ_SECONDS)) for each target'
	@echo 'make bench      what gating adds to an exec, many sessions on one service, and sandboxes (minutes)'
	@echo 'make clean      remove target/'

build: dependencies programs wrapper shells

dependencies:
	@scripts/install-dependencies build

test-dependencies:
	@scripts/install-dependencies build test

programs:
	$(CARGO) build --locked --release --bin execgate --bin execgate-policyd
	@mkdir -p $(DIST)/bin
	@install -m 755 target/release/execgate target/release/execgate-policyd $(DIST)/bin/
	@mkdir -p $(DIST)/share/man/man1 $(DIST)/share/bash-completion/completions \
		$(DIST)/share/zsh/site-functions $(DIST)/share/fish/vendor_completions.d
	@$(DIST)/bin/execgate manual $(DIST)/share/man/man1
	@for program in execgate execgate-policyd; do \
		write="$(DIST)/bin/execgate completions --program $$program"; \
		$$write bash >$(DIST)/share/bash-completion/completions/$$program && \
		$$write zsh >$(DIST)/share/zsh/site-functions/_$$program && \
		$$write fish >$(DIST)/share/fish/vendor_completions.d/$$program.fish || exit 1; \
	done

# The start of a C library, or a dynamic loader, would be most of the wrapper's cost, so it has neither; on
# processors that its own start isn't written for it is statically linked, as what it becomes always is.
STATIC := -C target-feature=+crt-static
ifeq ($(shell uname -m),x86_64)
WRAPPER_FEATURES :=
WRAPPER_LINK := $(STATIC) -C relocation-model=static -C link-arg=-nostdlib -C link-arg=-nostartfiles
else
WRAPPER_FEATURES := --features std
WRAPPER_LINK := $(STATIC)
endif
SMALL := rustc --locked --profile wrapper --no-default-features

wrapper:
	$(CARGO) $(SMALL) --features std --bin execgate-stand-in -- $(STATIC)
	$(CARGO) $(SMALL) $(WRAPPER_FEATURES) --bin execgate-wrapper -- $(WRAPPER_LINK)
	@mkdir -p $(DIST)/libexec/execgate
	@install -m 755 target/wrapper/execgate-wrapper target/wrapper/execgate-stand-in $(DIST)/libexec/execgate/

shells:
	patches/build-shells.sh all --prefix $(DIST) --work target/shells

install: build
	@mkdir -p $(DESTDIR)$(PREFIX)
	cp -R $(DIST)/bin $(DIST)/libexec $(DIST)/share $(DESTDIR)$(PREFIX)/

demo: build
	@scripts/install-dependencies build demo
	@examples/demo/demo.sh $(DIST)

lint:
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --locked --no-deps --document-private-items
	@$(CARGO) metadata --locked --quiet --manifest-path fuzz/Cargo.toml --format-version 1 >/dev/null || \
		{ echo 'fuzz/Cargo.lock lags behind Cargo.toml: cargo metadata --manifest-path fuzz/Cargo.toml' >&2; exit 1; }

deny:
	scripts/cargo-deny check bans licenses sources

# What the tests of services in Python need.
python: $(PYTHON_ENVIRONMENT)/installed

$(PYTHON_ENVIRONMENT)/installed: examples/policies/python/requirements.txt
	python3 -m venv $(PYTHON_ENVIRONMENT)
	$(PYTHON_ENVIRONMENT)/bin/pip install --quiet --disable-pip-version-check -r $<
	touch $@

test: test-dependencies build python lint deny
	patches/build-shells.sh all --unpatched --prefix target/native --work target/shells-native
	tests/shells/run.sh bash $(DIST)/libexec/execgate/bash target/native/libexec/execgate/bash-unpatched
	tests/shells/run.sh zsh $(DIST)/libexec/execgate/zsh target/native/libexec/execgate/zsh-unpatched
	RUST_TEST_THREADS=$(TEST_THREADS) $(CARGO) test --locked

test-all: test
	tests/shells/upstream-suites.sh --work target/shells all
	tests/shells/upstream-suites.sh --work target/shells --gate $(DIST) all
	scripts/install-dependencies work
	scripts/real-work $(DIST)
	CHAOS_EXECS=10000 $(CARGO) test --locked --test chaos

# CHAOS_SEED=N makes the same choices again. As root, or the network and the full disk are left out.
chaos: export CHAOS_EXECS ?= 10000
chaos: test-dependencies build
	$(CARGO) test --locked --test chaos -- --nocapture

# FUZZ_TARGETS='frames rules' runs those alone.
fuzz:
	@scripts/install-dependencies build fuzz
	CARGO=$(CARGO) scripts/fuzz $(FUZZ_SECONDS) $(FUZZ_TARGETS)

bench: build
	$(CARGO) bench --locked --bench exec_cost --bench sessions --bench sandbox_cost --bench event_store

clean:
	rm -rf target
