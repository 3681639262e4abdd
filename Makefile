# Every command a person runs.
#
#   make             build/moonjay and build/libmoonjay.a
#   make demo        install what is missing, build, run the demo on a private memcached
#   make test        install what is missing, build, run every spec; ONLY=spec/url_spec.lua: one
#   make test-asan   the same under AddressSanitizer and UBSan, built in build/asan
#   make fuzz        libFuzzer for SECONDS=20 on each target of spec/fuzz; REPLAY=FILE: one input
#   make torture     real servers under faults for SECONDS=60, from SEED=: nothing wrong may come
#   make fault       fail each system call and allocation in turn; make fault-asan: sanitized
#   make bench       moonjay beside the floor and its peers; ONLY=P2,P3 ROUNDS=5 SECONDS=0.5
#   make bench-link  what Nagle's algorithm costs, on loopback and over a slow link
#   make bench-tools what benches compare with, built in build/bench; make bench-deps: its packages
#   make bench-check instructions per operation, held against bench/recorded.json
#   make bench-record ... and recorded anew
#   make bench-growth more tasks, connections, servers; bench-tail, bench-start, bench-interpreted
#   make soak        everything at full rate for MINUTES=10: memory must stay flat
#   make lint        compiler warnings as errors, clang-tidy, cppcheck, clang-format, luacheck
#   make fmt         let clang-format have its way with src and the C of spec
#   make install     program, library, header under PREFIX (/usr/local), below DESTDIR
#   make deps        install what building and `make test` need (Debian packages)
#   make deps-ci     ... and what lint and fuzz need
#   make clean
#
# V=1 shows the commands.

VERSION := 0.1.0
PREFIX  := /usr/local
BUILD   := build
CC      := gcc
CFLAGS  := -O3 -g -flto=auto -ffat-lto-objects
JOBS    := $(shell nproc)

PACKAGES    := gcc libc6-dev pkg-config luajit libluajit-5.1-dev libevent-dev
PACKAGES    += memcached lua-busted lua-cjson
PACKAGES_CI := $(PACKAGES) lua-check cppcheck clang clang-tidy clang-format
PACKAGES_CI += libclang-rt-dev llvm valgrind

# What benches compare with. Never libnginx-mod-http-lua: with it goes the LuaJIT built with here.
PACKAGES_BENCH := libmemcached-dev libmemcached-tools ruby ruby-dalli
PACKAGES_BENCH += python3 python3-pymemcache python3-pylibmc

LIBRARIES := luajit libevent_core
WARNINGS  := -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes
LANGUAGE   = -std=c11 -D_GNU_SOURCE -DMOONJAY_VERSION='"$(VERSION)"' -Isrc \
             $(shell pkg-config --cflags $(LIBRARIES))
COMPILE    = $(CC) $(LANGUAGE) $(WARNINGS) $(CFLAGS)
LINK       = $(shell pkg-config --libs $(LIBRARIES)) -lpthread
SANITIZE  := -fsanitize=address,undefined -fno-sanitize-recover=all

# The targets of spec/fuzz, and what each is made of beside its own file.
FUZZ       := meta ascii url call conn
FUZZ_MAIN  := replay
FUZZ_meta  := replies words
FUZZ_ascii := replies words
FUZZ_call  := server words sim_loop sim_stream
FUZZ_conn  := play play_told play_check server words sim_loop sim_stream

# What spec/fault/fault.c stands in for. libevent is linked in, for its calls are caught too.
WRAPPED := malloc calloc realloc free strdup asprintf read recvmsg recv sendmsg send close socket
WRAPPED += connect
WRAPPED += setsockopt getsockopt getsockname getpeername epoll_create1 epoll_ctl epoll_wait
WRAPPED += timerfd_create timerfd_settime pipe2 eventfd eventfd_read getaddrinfo
WRAPPED += pthread_create pthread_attr_init pthread_mutex_init
WRAP     = -fno-lto $(WRAPPED:%=-Wl,--wrap=%)
WRAP    += -Wl,-Bstatic -levent_core -Wl,-Bdynamic $(shell pkg-config --libs luajit) -lpthread

SOURCES := $(filter-out src/main.c,$(wildcard src/*.c))
OBJECTS := $(SOURCES:src/%.c=$(BUILD)/%.o) $(BUILD)/lua_bytecode.o
C_SPECS := $(patsubst spec/c/%.c,$(BUILD)/spec/%,$(wildcard spec/c/*.c))
FUZZERS := $(FUZZ:%=$(BUILD)/spec/fuzz_%)
FAULTS  := $(patsubst spec/fault/%.c,$(BUILD)/fault/%.o,$(wildcard spec/fault/*.c))
TOOLS   := $(patsubst spec/support/%.c,$(BUILD)/spec/%,$(wildcard spec/support/*.c))
PROXY   := $(wildcard spec/proxy/*.c)
LIMIT   := $(wildcard bench/*.c)
PEERS   := $(shell pkg-config --exists libmemcached 2>/dev/null && echo libmemcached)
C_FILES := $(wildcard src/*.c spec/c/*.c spec/fuzz/*.c spec/fault/*.c spec/support/*.c) $(PROXY)
C_FILES += $(LIMIT) $(PEERS:%=bench/peers/%.c)
HEADERS := $(wildcard src/*.h spec/c/*.h spec/fuzz/*.h spec/fault/*.h spec/proxy/*.h)
HEADERS += $(wildcard bench/*.h)
MODULES := $(shell find lua/moonjay -name '*.lua' | sort)

Q := $(if $(V),,@)

# The first make starts another with a job for each processor, unless it was told how many; deeper
# ones share these.
SUBMAKE = +@$(MAKE) --no-print-directory \
          $(if $(filter 0,$(MAKELEVEL)),$(if $(filter -j%,$(MAKEFLAGS)),,-j$(JOBS)))

.PHONY: all specs demo test test-asan fmt install deps deps-ci clean ready
.PHONY: bench bench-link bench-check bench-record bench-tools bench-deps soak
.PHONY: bench-growth bench-tail bench-start bench-interpreted bench-profile
.PHONY: fuzz fuzzers fuzz-replay $(FUZZ:%=fuzz-%) torture fault fault-asan
.PHONY: lint lint-gcc lint-clang lint-tidy lint-cppcheck lint-format lint-lua
.DELETE_ON_ERROR:

all: $(BUILD)/moonjay $(BUILD)/libmoonjay.a

# ---- build ---------------------------------------------------------------------------------

$(BUILD)/moonjay: $(BUILD)/main.o $(BUILD)/libmoonjay.a
	@echo "link    $@"
	$Q$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(LINK)

$(BUILD)/libmoonjay.a: $(OBJECTS)
	@echo "archive $@"
	$Qrm -f $@ && ar rcs $@ $^

$(BUILD)/%.o: src/%.c Makefile | ready
	@echo "compile $<"
	$Q$(COMPILE) -MMD -MP -c -o $@ $<

$(BUILD)/%.o: $(BUILD)/%.c
	$Q$(COMPILE) -c -o $@ $<

# The Lua library as bytecode with its debug information, one array a module. The folders are
# prerequisites because their time changes when a module comes or goes.
module_name = $(subst /,.,$(patsubst %/init,%,$(1:lua/%.lua=%)))
module_array = luaJIT_BC_$(subst .,_,$(module_name))
$(BUILD)/lua_bytecode.c: $(MODULES) $(shell find lua/moonjay -type d) src/lua_modules.h | ready
	@echo "compile lua/moonjay"
	$Qset -e; exec > $@; echo '#include "lua_modules.h"'; echo '#include <stddef.h>'; cd lua; \
	$(foreach m,$(MODULES),luajit -bg -t h -n $(call module_name,$m) $(m:lua/%=%) -;) \
	echo 'const struct mj__lua_module mj__lua_modules[] = {'; \
	$(foreach m,$(MODULES),echo '    {"$(call module_name,$m)",' \
	    '(const char *)$(call module_array,$m), sizeof $(call module_array,$m)},';) \
	echo '    {NULL, NULL, 0}};'

# Specs are linked without optimizing the library anew for each.
specs: all $(C_SPECS) $(FUZZERS) $(TOOLS) $(BUILD)/spec/proxy $(BUILD)/spec/sweep
specs: $(BUILD)/bench/limit

$(BUILD)/spec/%: spec/c/%.c $(BUILD)/libmoonjay.a | ready
	@echo "compile $<"
	$Q$(COMPILE) -fno-lto $(LDFLAGS) -MMD -MP -o $@ $< $(BUILD)/libmoonjay.a $(LINK)

# What specs run beside the library: it shares no code with it.
$(TOOLS): $(BUILD)/spec/%: spec/support/%.c | ready
	@echo "compile $<"
	$Q$(COMPILE) $(LDFLAGS) -MMD -MP -o $@ $<

# The fault proxy shares nothing with what it tests: it is compiled without src in sight.
$(BUILD)/spec/proxy: $(PROXY) $(wildcard spec/proxy/*.h) Makefile | ready
	@echo "compile spec/proxy"
	$Q$(CC) -std=c11 -D_GNU_SOURCE $(WARNINGS) $(CFLAGS) $(LDFLAGS) -o $@ $(PROXY)

# What benches compare with: none of it is linked with what it measures.
bench-tools: $(BUILD)/bench/limit $(PEERS:%=$(BUILD)/bench/%)
	$Q[ -n "$(PEERS)" ] || \
	    echo "libmemcached is not there and is left out ('make bench-deps' installs it)" >&2

$(BUILD)/bench/limit: $(LIMIT) $(wildcard bench/*.h) Makefile | ready
	@echo "compile bench/limit"
	$Q$(CC) -std=c11 -D_GNU_SOURCE $(WARNINGS) $(CFLAGS) $(LDFLAGS) -o $@ $(LIMIT)

$(PEERS:%=$(BUILD)/bench/%): $(BUILD)/bench/%: bench/peers/%.c bench/contender.c bench/contender.h \
    Makefile | ready
	@echo "compile $<"
	$Q$(CC) -std=c11 -D_GNU_SOURCE $(WARNINGS) $(CFLAGS) $(LDFLAGS) \
	    $(shell pkg-config --cflags $*) -o $@ $< bench/contender.c $(shell pkg-config --libs $*)

# The linker sends calls elsewhere only in what it does not compile itself.
$(BUILD)/spec/sweep: $(FAULTS) $(BUILD)/libmoonjay.a
	@echo "link    $@"
	$Q$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(WRAP)

$(BUILD)/fault/%.o: spec/fault/%.c Makefile | ready
	@echo "compile $<"
	$Q$(COMPILE) -fno-lto -MMD -MP -c -o $@ $<

.SECONDEXPANSION:
$(FUZZERS): $(BUILD)/spec/fuzz_%: $(BUILD)/spec/fuzz/%.o $(BUILD)/spec/fuzz/fuzz.o \
    $$(addprefix $(BUILD)/spec/fuzz/,$$(addsuffix .o,$(FUZZ_MAIN) $$(FUZZ_$$*))) \
    $(BUILD)/libmoonjay.a
	@echo "link    $@"
	$Q$(CC) $(CFLAGS) -fno-lto $(LDFLAGS) -o $@ $^ $(LINK)

$(BUILD)/spec/fuzz/%.o: spec/fuzz/%.c Makefile | ready
	@echo "compile $<"
	$Q$(filter-out -fsanitize=fuzzer-no-link,$(COMPILE)) -MMD -MP -c -o $@ $<

-include $(wildcard $(BUILD)/*.d $(BUILD)/spec/*.d $(BUILD)/spec/fuzz/*.d $(BUILD)/fault/*.d)

# Says in one line what is missing before the compiler says it in a hundred.
ready:
	@lacking=; \
	for tool in $(CC) pkg-config luajit; do \
	    command -v $$tool >/dev/null || lacking="$$lacking $$tool"; \
	done; \
	command -v pkg-config >/dev/null && for library in $(LIBRARIES); do \
	    pkg-config --exists $$library || lacking="$$lacking $$library.pc"; \
	done; \
	if [ -n "$$lacking" ]; then \
	    echo "moonjay cannot be built without:$$lacking ('make deps' installs them)" >&2; \
	    exit 1; \
	fi; \
	mkdir -p $(BUILD)/spec/fuzz $(BUILD)/fault $(BUILD)/bench

# ---- run -----------------------------------------------------------------------------------

demo: deps
	$(SUBMAKE) all
	$(BUILD)/moonjay run --memcached lua/examples/demo.lua

test: deps
	$(SUBMAKE) specs
	$(BUILD)/moonjay spec/run.lua $(ONLY)

test-asan fault-asan: %-asan:
	$(SUBMAKE) $* BUILD=build/asan LDFLAGS="$(SANITIZE)" \
	    CFLAGS="-O1 -g -fno-omit-frame-pointer $(SANITIZE)"

fault: deps
	$(SUBMAKE) $(BUILD)/spec/sweep
	$(BUILD)/spec/sweep

# Built in build/clang. A corpus grows in build/fuzz from run to run; a finding is left there too.
SECONDS := 20
SEED    := $(shell echo $$$$)
FUZZED   = $(BUILD)/clang

fuzz:
	@command -v clang >/dev/null || { \
	    echo "make fuzz needs clang, which is not there ('make deps-ci' installs it)" >&2; \
	    exit 1; \
	}
	$(SUBMAKE) all
	$(SUBMAKE) fuzzers BUILD=$(FUZZED) CC=clang FUZZ_MAIN= \
	    CFLAGS="-O1 -g -fno-omit-frame-pointer -fsanitize=fuzzer-no-link $(SANITIZE)" \
	    LDFLAGS="-fsanitize=fuzzer $(SANITIZE)"
	$(SUBMAKE) $(if $(REPLAY),fuzz-replay,--keep-going $(FUZZ:%=fuzz-%))

fuzzers: $(FUZZERS)

$(FUZZ:%=fuzz-%): fuzz-%:
	@BUILD=$(BUILD) FUZZED=$(FUZZED) SECONDS=$(SECONDS) SEED=$(SEED) spec/fuzz/run $*

fuzz-replay:
	@BUILD=$(BUILD) FUZZED=$(FUZZED) spec/fuzz/run --replay $(REPLAY)

# Prints its seed; the same seed makes the same choices, though never at the same moments.
torture: SECONDS := 60
torture: SEED := $(shell date +%s)
torture:
	$(SUBMAKE) all $(BUILD)/spec/proxy
	$(BUILD)/moonjay spec/torture/run.lua $(SECONDS) $(SEED)

# CORES=2 gives the client a processor of its own.
bench: ROUNDS := 5
bench: SECONDS := 0.5
bench: CORES := 1
bench:
	$(SUBMAKE) all bench-tools
	@$(BUILD)/moonjay bench/run.lua ONLY=$(ONLY) ROUNDS=$(ROUNDS) SECONDS=$(SECONDS) CORES=$(CORES)

bench-link:
	$(SUBMAKE) all $(TOOLS)
	@$(BUILD)/moonjay bench/link.lua

# memcached answers a whole batch at once, so that counts are alike from run to run.
bench-check bench-record: bench-%:
	$(SUBMAKE) all
	$(BUILD)/moonjay run --memcached-args "-R 200 -t 1" bench/check.lua $*

bench-growth bench-tail bench-start bench-interpreted bench-profile: bench-%:
	$(SUBMAKE) all bench-tools
	@$(BUILD)/moonjay bench/$*.lua

soak: MINUTES := 10
soak: SEED := $(shell date +%s)
soak:
	$(SUBMAKE) all
	$(BUILD)/moonjay run --memcached-args "-R 200 -t 1 -m 256" bench/soak.lua $(MINUTES) $(SEED)

# ---- check ---------------------------------------------------------------------------------

lint:
	$(SUBMAKE) --keep-going --output-sync lint-gcc lint-clang lint-tidy lint-cppcheck \
	    lint-format lint-lua

lint-gcc:
	$(SUBMAKE) specs bench-tools BUILD=build/lint CFLAGS="-O2 -g -Werror"

lint-clang:
	@echo "clang -Werror"
	$Qclang $(LANGUAGE) $(WARNINGS) -Werror -fsyntax-only $(C_FILES)

lint-tidy:
	@echo "clang-tidy"
	$Qprintf '%s\n' $(C_FILES) | xargs -P $(JOBS) -I FILE \
	    clang-tidy --quiet --warnings-as-errors='*' FILE -- $(LANGUAGE) 2>/dev/null

lint-cppcheck:
	@echo "cppcheck"
	$Qcppcheck --quiet --error-exitcode=1 --enable=warning,performance,portability \
	    --inline-suppr --suppress=funcArgOrderDifferent --std=c11 -D_GNU_SOURCE -Isrc $(C_FILES)

lint-format:
	@echo "clang-format"
	$Qclang-format --dry-run -Werror $(C_FILES) $(HEADERS)

lint-lua:
	@echo "luacheck"
	$Qluacheck --quiet lua spec bench

fmt:
	clang-format -i $(C_FILES) $(HEADERS)

# ---- install -------------------------------------------------------------------------------

install: all
	install -D -m 755 $(BUILD)/moonjay $(DESTDIR)$(PREFIX)/bin/moonjay
	install -D -m 644 $(BUILD)/libmoonjay.a $(DESTDIR)$(PREFIX)/lib/libmoonjay.a
	install -D -m 644 src/moonjay.h $(DESTDIR)$(PREFIX)/include/moonjay.h

# Asks dpkg first: apt runs only when a package is missing, and fetches lists only when it must.
deps: WANTED = $(PACKAGES)
deps-ci: WANTED = $(PACKAGES_CI)
bench-deps: WANTED = $(PACKAGES_BENCH)
deps deps-ci bench-deps:
	@have=" $$(dpkg-query -W -f='$${db:Status-Status}:$${Package} ' $(WANTED) 2>/dev/null)"; \
	lacking=; \
	for package in $(WANTED); do \
	    case "$$have" in \
	        *" installed:$$package "*) ;; \
	        *) lacking="$$lacking $$package" ;; \
	    esac; \
	done; \
	[ -n "$$lacking" ] || exit 0; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
	    echo "moonjay needs Debian packages; as root: apt-get install$$lacking" >&2; \
	    exit 1; \
	fi; \
	export DEBIAN_FRONTEND=noninteractive; \
	install="apt-get install -q -y --no-install-recommends $$lacking"; \
	$$install </dev/null || { apt-get update -q && $$install </dev/null; } || { \
	    echo "moonjay needs Debian packages that apt-get could not install:$$lacking" >&2; \
	    exit 1; \
	}

clean:
	rm -rf build
