/* lua_error.h: the one place where failures become Lua values. */
#ifndef MJ_LUA_ERROR_H
#define MJ_LUA_ERROR_H

#include "error.h"

#include <lua.h>
#include <stdbool.h>

/* Pushes an error table { kind, message, op, key, server, phase, sent, retryable, attempts = 1 }
 * with the metatable of moonjay.errors. op, key and server may be NULL. `message` is a sentence
 * made of op, key, server and error->text. `retryable` follows from kind, sent and op: true where
 * section 7 rule 3 of the semantics lets a retry be safe. Throws when out of memory. */
void mj__lua_push_error(lua_State *L, const struct mj__error *error, const char *op,
                        const char *key, size_t key_size, const char *server);
/* nil and the error: what a function returns for a failure. Returns 2. */
int mj__lua_fail(lua_State *L, const struct mj__error *error, const char *op, const char *key,
                 size_t key_size, const char *server);
/* The error on top is that of a quiet request, which may not be repeated, whatever else it is. */
void mj__lua_never_again(lua_State *L);
/* True for an error table of this kind. */
bool mj__lua_is_kind(lua_State *L, int index, enum mj__kind kind);
/* Throws a misuse: "FUNCTION: MESSAGE", with the position of the script's own line (the nearest
 * Lua frame that is not part of the moonjay library). Does not return. */
int mj__lua_misuse(lua_State *L, const char *function, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Pushes that position, "script.lua:12: ", or "" where no frame is the script's. */
void mj__lua_position(lua_State *L);

#endif
