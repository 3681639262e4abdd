/* memory.c: what a runtime's Lua state holds, and how little it may. */
#include "runtime_parts.h"

#include "buffer.h"

#include <stdlib.h>
#include <string.h>

enum {
    RESERVE_SIZE = 48 << 10, /* twice what LuaJIT takes in the moments it is for */
    ALIGNMENT = 16
};

/* ---- the reserve ----
 *
 * Where memory runs out while a state gets its first blocks, Debian 12's LuaJIT crashes; where it
 * runs out while the FFI is loaded, any LuaJIT loses two blocks for ever. So what is refused in
 * these moments comes from a reserve, in pieces that are given back together. */

int mj__memory_open_reserve(struct mj__runtime *runtime) {
    runtime->reserve = malloc(RESERVE_SIZE);
    runtime->reserve_open = runtime->reserve != NULL;
    return runtime->reserve_open ? 0 : -1;
}

/* It stays while something of it may be in use. */
void mj__memory_close_reserve(struct mj__runtime *runtime) {
    runtime->reserve_open = false;
    if (runtime->reserve_used == 0) {
        mj__memory_close(runtime);
    }
}

void mj__memory_close(struct mj__runtime *runtime) {
    free(runtime->reserve);
    runtime->reserve = NULL;
}

static void *from_reserve(struct mj__runtime *runtime, size_t size) {
    size = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (!runtime->reserve_open || size > RESERVE_SIZE - runtime->reserve_used) {
        return NULL;
    }
    char *piece = runtime->reserve + runtime->reserve_used;
    runtime->reserve_used += size;
    return piece;
}

static bool is_reserved(const struct mj__runtime *runtime, const void *block) {
    uintptr_t start = (uintptr_t)runtime->reserve, at = (uintptr_t)block;
    return start != 0 && at >= start && at < start + RESERVE_SIZE;
}

/* ---- the allocator ---- */

static bool is_over(const struct mj__runtime *runtime, size_t old_size, size_t size) {
    size_t limit = runtime->options.memory_limit;
    return limit != 0 && size > old_size && runtime->memory + (size - old_size) > limit;
}

static void give_back(const struct mj__runtime *runtime, void *block) {
    if (!is_reserved(runtime, block)) {
        free(block);
    }
}

/* NULL: no memory, and the block is as it was. */
static void *resize(struct mj__runtime *runtime, void *block, size_t old_size, size_t size) {
    bool over = is_over(runtime, old_size, size), reserved = is_reserved(runtime, block);
    void *moved = over ? NULL : realloc(reserved ? NULL : block, size);
    if (moved != NULL && !reserved) {
        return moved;
    }
    if (moved == NULL) {
        moved = from_reserve(runtime, size);
    }
    if (moved != NULL && block != NULL) {
        memcpy(moved, block, old_size < size ? old_size : size);
        give_back(runtime, block);
    }
    return moved;
}

void *mj__memory_allocate(void *arg, void *block, size_t old_size, size_t size) {
    struct mj__runtime *runtime = arg;
    if (size == 0) {
        give_back(runtime, block);
        runtime->memory -= old_size;
        return NULL;
    }
    if (is_over(runtime, old_size, size)) {
        mj__pool_trim(runtime->pool);
    }
    void *moved = resize(runtime, block, old_size, size);
    if (moved == NULL) {
        runtime->refused = true;
        return size <= old_size ? block : NULL; /* Lua counts on shrinking */
    }
    runtime->memory += size - old_size;
    return moved;
}

/* ---- relief ---- */

static void collect(lua_State *L, void *arg) {
    (void)arg;
    lua_gc(L, LUA_GCCOLLECT, 0);
}

/* LuaJIT does not collect when memory runs out, and by itself only once use has doubled: near the
 * limit that is too late. */
void mj__memory_relieve(struct mj__runtime *runtime) {
    size_t limit = runtime->options.memory_limit;
    bool near =
        runtime->memory >= limit / 4 * 3 && runtime->memory >= runtime->relieved + limit / 16;
    if (limit == 0 || !(runtime->refused || near)) {
        return;
    }
    runtime->refused = false;
    mj__runtime_protect(runtime, collect, NULL);
    runtime->relieved = runtime->memory;
}
