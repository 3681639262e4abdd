/* lua_modules.h: the Lua library, linked in as bytecode, and how `require` finds it. */
#ifndef MJ_LUA_MODULES_H
#define MJ_LUA_MODULES_H

#include <stddef.h>

struct lua_State;

struct mj__lua_module {
    const char *name; /* as require knows it: "moonjay", "moonjay.wait" */
    const char *data;
    size_t size;
};

/* Made from lua/moonjay by the Makefile; a NULL name ends it. */
extern const struct mj__lua_module mj__lua_modules[];

/* Puts a loader of these modules, before all others but package.preload, into a state whose
 * libraries are open. Where the environment names a folder in MOONJAY_LUA, files in it win over
 * what is linked in. Throws when out of memory. */
void mj__lua_modules_open(struct lua_State *L);
/* Pushes the chunk of one module, as require would find it. Throws when there is none. */
void mj__lua_modules_push(struct lua_State *L, const char *name);

#endif
