#include "lua_error.h"

#include "command.h"
#include "lua_open.h"

#include <lauxlib.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    SHOWN_KEY = 80, /* of a key in a message */
    SHOWN_SERVER = 160,
    SHOWN_OP = 40
};

/* Its address is the registry's key for the metatable of error tables. */
static const char meta_key;

static void push_meta(lua_State *L) {
    lua_pushlightuserdata(L, (void *)(uintptr_t)&meta_key);
    lua_rawget(L, LUA_REGISTRYINDEX);
}

/* ---- may it be tried again? ---- */

/* Kinds after which a second try may fare better. Not among them: what the caller must change,
 * what somebody decided (cancelled, down), and what must not be papered over (protocol). */
static bool is_transient(enum mj__kind kind) {
    switch (kind) {
    case MJ__RESOLVE:
    case MJ__CONNECT_REFUSED:
    case MJ__CONNECT_TIMEOUT:
    case MJ__UNREACHABLE:
    case MJ__TIMEOUT:
    case MJ__CLOSED:
    case MJ__RESET:
    case MJ__SERVER_ERROR:
        return true;
    default:
        return false;
    }
}

/* A connection sends set_many and delete_many as many of the others. */
static bool is_idempotent(const char *op) {
    if (strcmp(op, "set_many") == 0 || strcmp(op, "delete_many") == 0) {
        return true;
    }
    for (int id = 0; id < MJ__COMMANDS; id++) {
        const struct mj__command *command = mj__command((enum mj__command_id)id);
        if (strcmp(command->name, op) == 0) {
            return command->idempotent;
        }
    }
    return false;
}

/* A call on a connection that was closed before it: made again there, it fails again. */
static bool is_hopeless(const struct mj__error *error) {
    bool tells_why = error->kind == MJ__CLOSED || error->kind == MJ__SERVER_ERROR;
    return tells_why && error->phase == MJ__PHASE_NONE;
}

static bool is_retryable(enum mj__kind kind, enum mj__sent sent, const char *op) {
    return is_transient(kind) && (sent == MJ__SENT_NO || (op != NULL && is_idempotent(op)));
}

/* ---- error tables ---- */

/* Pushes what a person needs: `get "key" on memcache://host:11211: what happened`. */
static void push_message(lua_State *L, const char *text, const char *op, const char *key,
                         size_t key_size, const char *server) {
    char shown[SHOWN_KEY], line[SHOWN_OP + SHOWN_KEY + SHOWN_SERVER + 16];
    int at = 0, size = sizeof line;
    if (op != NULL) {
        at += snprintf(line + at, (size_t)(size - at), "%.*s", SHOWN_OP, op);
    }
    if (key != NULL) {
        mj__printable(shown, sizeof shown, key, key_size);
        at += snprintf(line + at, (size_t)(size - at), "%s\"%s\"", at > 0 ? " " : "", shown);
    }
    if (server != NULL) {
        const char *word = op != NULL && strcmp(op, "connect") == 0 ? " to " : " on ";
        snprintf(line + at, (size_t)(size - at), "%s%.*s", at > 0 ? word : "", SHOWN_SERVER,
                 server);
    }
    if (op == NULL && key == NULL && server == NULL) {
        lua_pushstring(L, text);
    } else {
        lua_pushfstring(L, "%s: %s", line, text);
    }
}

static void set_text(lua_State *L, const char *field, const char *text) {
    if (text != NULL && *text != '\0') {
        lua_pushstring(L, text);
        lua_setfield(L, -2, field);
    }
}

void mj__lua_push_error(lua_State *L, const struct mj__error *error, const char *op,
                        const char *key, size_t key_size, const char *server) {
    luaL_checkstack(L, 6, NULL);
    lua_createtable(L, 0, 9);
    set_text(L, "kind", mj__kind_name(error->kind));
    set_text(L, "op", op);
    set_text(L, "server", server);
    set_text(L, "phase", mj__phase_name(error->phase));
    set_text(L, "sent", mj__sent_name(error->sent));
    if (key != NULL) {
        lua_pushlstring(L, key, key_size);
        lua_setfield(L, -2, "key");
    }
    push_message(L, error->text, op, key, key_size, server);
    lua_setfield(L, -2, "message");
    lua_pushboolean(L, is_retryable(error->kind, error->sent, op) && !is_hopeless(error));
    lua_setfield(L, -2, "retryable");
    lua_pushinteger(L, 1);
    lua_setfield(L, -2, "attempts");
    push_meta(L);
    lua_setmetatable(L, -2);
}

int mj__lua_fail(lua_State *L, const struct mj__error *error, const char *op, const char *key,
                 size_t key_size, const char *server) {
    lua_pushnil(L);
    mj__lua_push_error(L, error, op, key, key_size, server);
    return 2;
}

void mj__lua_never_again(lua_State *L) {
    lua_pushboolean(L, false);
    lua_setfield(L, -2, "retryable");
}

static bool is_error(lua_State *L, int index) {
    if (!lua_istable(L, index) || !lua_getmetatable(L, index)) {
        return false;
    }
    push_meta(L);
    bool same = lua_rawequal(L, -1, -2) != 0;
    lua_pop(L, 2);
    return same;
}

bool mj__lua_is_kind(lua_State *L, int index, enum mj__kind kind) {
    if (!is_error(L, index)) {
        return false;
    }
    lua_pushvalue(L, index);
    lua_getfield(L, -1, "kind");
    const char *name = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "";
    bool same = strcmp(name, mj__kind_name(kind)) == 0;
    lua_pop(L, 2);
    return same;
}

/* ---- misuse ---- */

/* The library's chunks are named by their path in lua/. */
static bool is_library(const char *source) {
    static const char folder[] = "@moonjay/";
    return strncmp(source, folder, sizeof folder - 1) == 0;
}

void mj__lua_position(lua_State *L) {
    lua_Debug frame;
    for (int level = 0; lua_getstack(L, level, &frame) != 0; level++) {
        lua_getinfo(L, "Sl", &frame);
        if (frame.currentline > 0 && !is_library(frame.source)) {
            lua_pushfstring(L, "%s:%d: ", frame.short_src, frame.currentline);
            return;
        }
    }
    lua_pushliteral(L, "");
}

int mj__lua_misuse(lua_State *L, const char *function, const char *format, ...) {
    char text[2 * MJ__ERROR_TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    mj__lua_position(L);
    lua_pushfstring(L, "%s: %s", function, text);
    lua_concat(L, 2);
    return lua_error(L);
}

/* ---- what Lua sees ---- */

/* The text of a field, pushed; NULL, nothing pushed, where it is none. */
static const char *push_field(lua_State *L, const char *field) {
    lua_getfield(L, 1, field);
    if (lua_type(L, -1) == LUA_TSTRING) {
        return lua_tostring(L, -1);
    }
    lua_pop(L, 1);
    return NULL;
}

/* "KIND: MESSAGE (sent: maybe, phase: read)" */
static int error_tostring(lua_State *L) {
    luaL_checktype(L, 1, LUA_TTABLE);
    const char *kind = push_field(L, "kind");
    const char *message = push_field(L, "message");
    const char *sent = push_field(L, "sent");
    const char *phase = push_field(L, "phase");
    lua_pushfstring(L, "%s%s%s", kind != NULL ? kind : "", kind != NULL ? ": " : "",
                    message != NULL ? message : "no message");
    if (phase != NULL) {
        lua_pushfstring(L, " (sent: %s, phase: %s)", sent != NULL ? sent : "no", phase);
        lua_concat(L, 2);
    } else if (sent != NULL && strcmp(sent, "no") != 0) {
        lua_pushfstring(L, " (sent: %s)", sent);
        lua_concat(L, 2);
    }
    return 1;
}

/* So that "text: " .. err reads as tostring does. */
static int error_concat(lua_State *L) {
    for (int i = 1; i <= 2; i++) {
        if (!luaL_callmeta(L, i, "__tostring")) {
            lua_pushvalue(L, i);
        }
    }
    lua_concat(L, 2);
    return 1;
}

/* core.misuse(function, message) */
static int misuse(lua_State *L) {
    return mj__lua_misuse(L, luaL_checkstring(L, 1), "%s", luaL_checkstring(L, 2));
}

static int find_name(const char *name, int count, const char *(*name_of)(int)) {
    for (int i = 0; name != NULL && i < count; i++) {
        if (strcmp(name, name_of(i)) == 0) {
            return i;
        }
    }
    return 0;
}

static const char *kind_of(int kind) {
    return mj__kind_name((enum mj__kind)kind);
}

static const char *sent_of(int sent) {
    return mj__sent_name((enum mj__sent)sent);
}

/* core.is_retryable(kind, sent, op) */
static int retryable(lua_State *L) {
    int kind = find_name(lua_tostring(L, 1), MJ__KINDS, kind_of);
    int sent = find_name(lua_tostring(L, 2), MJ__SENT_YES + 1, sent_of);
    lua_pushboolean(L,
                    is_retryable((enum mj__kind)kind, (enum mj__sent)sent, lua_tostring(L, 3)));
    return 1;
}

static void open_meta(lua_State *L) {
    static const luaL_Reg methods[] = {
        {"__tostring", error_tostring},
        {"__concat", error_concat},
        {NULL, NULL},
    };
    lua_pushlightuserdata(L, (void *)(uintptr_t)&meta_key);
    lua_createtable(L, 0, 4);
    luaL_setfuncs(L, methods, 0);
    lua_pushvalue(L, -1);
    lua_setfield(L, -4, "error_meta");
    lua_rawset(L, LUA_REGISTRYINDEX);
}

void mj__lua_open_error(lua_State *L) {
    static const luaL_Reg functions[] = {
        {"misuse", misuse},
        {"is_retryable", retryable},
        {NULL, NULL},
    };
    luaL_setfuncs(L, functions, 0);
    open_meta(L);
    lua_createtable(L, MJ__KINDS - 1, 0);
    for (int kind = MJ__KIND_NONE + 1; kind < MJ__KINDS; kind++) {
        lua_pushstring(L, kind_of(kind));
        lua_rawseti(L, -2, kind);
    }
    lua_setfield(L, -2, "kinds");
}
