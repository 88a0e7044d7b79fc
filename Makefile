# Two commands do everything on a fresh machine: `make demo` and `make test`.

CARGO ?= cargo
# mold links several times faster than the default linker, and linking is most of a small change.
export RUSTFLAGS ?= -C link-arg=-fuse-ld=mold

.PHONY: help demo test test-slurm test-python check build libs wheel sim-long crash-long loom sanitize posix-long bench-record fresh fuzz clean dist test-dist test-mpi test-doors container

help:
	@echo 'make demo      build, start a volume, mount it, work on it, measure, take it down'
	@echo 'make test      every test in its short form (under 30 minutes from nothing on 2 cores)'
	@echo 'make test-slurm  job scripts, prolog and epilog in a real Slurm on this machine (three minutes; needs root)'
	@echo 'make libs      the libraries for C: azekura.h and chfs.h, into target/library/azekura'
	@echo 'make test-python  the package for Python, with pandas, pyarrow, zarr, PyTorch and others (five minutes)'
	@echo 'make wheel     the package for Python, with the program in it, into target/wheels'
	@echo 'make dist      tar.gz, .deb, .rpm and wheel for machines without Rust, in target/dist'
	@echo 'make container a container image with it, in target/dist (needs root)'
	@echo 'make test-dist tries these packages in bare systems of Debian 11, 12 and 13 (needs root; ten minutes)'
	@echo 'make test-mpi  MPI-IO, HDF5, PnetCDF and NetCDF-4 on one node and on three namespaces (needs root; two minutes)'
	@echo 'make test-doors  programs of others without a mount: java, node, Python and its own tests, fsx, pjdfstest, MPI (six minutes)'
	@echo 'make check     formatting and lints'
	@echo 'make sim-long  50,000 simulated clusters instead of 200, and 5,000 volumes that last of each kind'
	@echo 'make loom      every order of the steps by which processes that share memory wake each other, give back and note'
	@echo 'make sanitize  threads and shared memory under a race detector (needs the nightly toolchain)'
	@echo 'make crash-long  kill -9 of servers, mounts and commands, 2,000 times, and 233 times while slots move (over an hour)'
	@echo 'make posix-long  real programs and random operations through mounts, for about an hour'
	@echo 'make bench-record NAME=x  measures for half an hour and writes bench/results/DATE-x (on a'
	@echo '               quiet machine; QUICK=1 tries all of it in a minute or two)'
	@echo 'make fresh     the demo in a bare Debian made for it, as root and as a user (FULL=1: the tests, too)'
	@echo 'make fuzz      30 s of hostile bytes for each decoder (needs the nightly toolchain and cargo-fuzz)'

build:
	@scripts/setup build
	AZE_COMMIT="$$(git describe --always --dirty --exclude '*' 2>/dev/null)" $(CARGO) build --locked --release -p aze-cli
	@# No protection of what is released can be taken away.
	@! $${CARGO_TARGET_DIR:-target}/release/aze version --json | grep sabotage
	$(CARGO) build --locked --profile guest -p aze-intercept
	@cp $${CARGO_TARGET_DIR:-target}/guest/libaze_intercept.so $${CARGO_TARGET_DIR:-target}/release/
	@# It is loaded into every program of a run: it must not need one function of theirs.
	@! nm -D --undefined-only $${CARGO_TARGET_DIR:-target}/release/libaze_intercept.so | grep -w U

libs:
	@scripts/setup build
	$(CARGO) build --locked --profile library -p aze-capi -p aze-chfs
	@scripts/link-libs target/library target/library/azekura

wheel: build
	@scripts/setup python
	$(CARGO) build --locked --profile library -p aze-python
	@scripts/wheel target/wheels target/library/lib_azekura.so target/release/aze target/release/libaze_intercept.so

demo: build
	@scripts/setup demo
	@scripts/demo

check:
	@scripts/setup build
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

test:
	@scripts/setup test
	@scripts/test

test-slurm:
	@scripts/slurm

test-python:
	@scripts/test-python

dist:
	@scripts/dist

container:
	@scripts/container

test-dist:
	@scripts/test-dist

test-mpi:
	@scripts/mpi

test-doors:
	@scripts/setup doors
	$(CARGO) install --locked --quiet --debug --root $${CARGO_TARGET_DIR:-target}/tools fsx@0.3.2 pjdfstest@0.2.2
	@BOUND=$${BOUND:-300} scripts/test --test doors

sim-long:
	$(CARGO) run --locked --release -p aze-sim -- --seeds 50000
	for kind in ending staying failing troubled renaming; do \
	  $(CARGO) run --locked --release -p aze-sim -- --persistent $$kind --seeds 5000 || exit; done
	$(CARGO) run --locked --release -p aze-sim -- --staging --seeds 5000
	$(CARGO) run --locked --release -p aze-sim -- --staging --in --seeds 5000
	$(CARGO) run --locked --release -p aze-sim -- --staging --rounds --seeds 5000
	$(CARGO) run --locked --release -p aze-sim -- --staging --nodes --seeds 5000
	$(CARGO) run --locked --release -p aze-sim -- --staging --rounds --nodes --seeds 5000
	$(CARGO) run --locked --release -p aze-sim -- --staging --in --nodes --seeds 5000
	AZE_SIM_SEEDS=2000 $(CARGO) test --locked --release -p aze-sim --test clients client_leases::
	AZE_TEST_LONG=1 $(CARGO) test --locked --release -p aze-sim --test scale

crash-long:
	@scripts/setup test
	@AZE_TEST_LONG=1 BOUND=7200 scripts/test --test crashes --test moves

loom:
	@scripts/loom

sanitize:
	@scripts/sanitize

posix-long:
	@scripts/setup test
	@AZE_TEST_LONG=1 BOUND=7200 scripts/test --test posix --test random_file --test names --test limits --test programs

bench-record: build
	@scripts/record $(or $(NAME),$(error name the machine or the reason: make bench-record NAME=x))

fresh:
	@scripts/fresh

fuzz:
	@scripts/fuzz

clean:
	$(CARGO) clean
