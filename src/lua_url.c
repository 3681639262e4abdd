#include "lua_error.h"
#include "lua_open.h"
#include "url_parts.h"

#include <lauxlib.h>

static const char url_type[] = "moonjay.url";

/* ---- endpoints as tables ---------------------------------------------------------------- */

static double seconds(mj__time span) {
    return (double)span / (double)MJ__SECOND;
}

/* Pushes the value that a script sees: false for what is off or left to the system, nil for
 * what was not given. */
static void push_option(lua_State *L, const struct mj__options *options,
                        const struct mj__option *option) {
    const void *field = (const char *)options + option->offset;
    switch (option->kind) {
    case MJ__FLAG:
        lua_pushboolean(L, *(const bool *)field);
        break;
    case MJ__WORD:
        lua_pushstring(L, option->words[*(const unsigned *)field]);
        break;
    case MJ__COUNT:
        lua_pushnumber(L, *(const uint32_t *)field);
        break;
    case MJ__SIZE:
        if (*(const uint64_t *)field == 0) {
            lua_pushboolean(L, false);
        } else {
            lua_pushnumber(L, (lua_Number) * (const uint64_t *)field);
        }
        break;
    case MJ__SPAN:
        lua_pushnumber(L, seconds(*(const mj__time *)field));
        break;
    case MJ__SPAN_OR_OFF:
        if (*(const mj__time *)field == 0) {
            lua_pushboolean(L, false);
        } else {
            lua_pushnumber(L, seconds(*(const mj__time *)field));
        }
        break;
    case MJ__TEXT:
    case MJ__NAME:
        lua_pushstring(L, *(char *const *)field);
        break;
    }
}

static void set_text(lua_State *L, const char *name, const char *text) {
    lua_pushstring(L, text);
    lua_setfield(L, -2, name);
}

static void push_endpoint(lua_State *L, const struct mj__endpoint *endpoint) {
    static const char *const transports[] = {
        [MJ__TCP] = "tcp", [MJ__UNIX] = "unix", [MJ__UDP] = "udp"};
    lua_createtable(L, 0, 8);
    set_text(L, "transport", transports[endpoint->transport]);
    set_text(L, "host", endpoint->host);
    set_text(L, "path", endpoint->path);
    set_text(L, "user", endpoint->user);
    set_text(L, "password", endpoint->password);
    if (endpoint->host) {
        lua_pushinteger(L, endpoint->port);
        lua_setfield(L, -2, "port");
    }
    lua_pushboolean(L, endpoint->tls);
    lua_setfield(L, -2, "tls");
    lua_createtable(L, 0, (int)mj__options_count);
    for (size_t i = 0; i < mj__options_count; i++) {
        push_option(L, &endpoint->options, &mj__options_table[i]);
        lua_setfield(L, -2, mj__options_table[i].name);
    }
    lua_setfield(L, -2, "options");
}

/* ---- parse_url -------------------------------------------------------------------------- */

static int url_gc(lua_State *L) {
    mj__url_free(lua_touserdata(L, 1));
    return 0;
}

/* An empty URL that is freed with the stack, so that no Lua error can leak it. */
static struct mj__url *push_url(lua_State *L) {
    struct mj__url *url = lua_newuserdata(L, sizeof *url);
    *url = (struct mj__url){0, NULL};
    luaL_getmetatable(L, url_type);
    lua_setmetatable(L, -2);
    return url;
}

static void check_arguments(lua_State *L) {
    int type = lua_type(L, 1);
    if (lua_gettop(L) != 1) {
        mj__lua_misuse(L, "parse_url", "wants one argument, a URL or a list of URLs, got %d",
                       lua_gettop(L));
    }
    if (type != LUA_TSTRING && type != LUA_TTABLE) {
        mj__lua_misuse(L, "parse_url",
                       "argument 1 wants a URL (string) or a list of URLs, got %s",
                       luaL_typename(L, 1));
    }
    for (int i = 1; type == LUA_TTABLE && i <= (int)lua_objlen(L, 1); i++) {
        lua_rawgeti(L, 1, i);
        if (lua_type(L, -1) != LUA_TSTRING) {
            mj__lua_misuse(L, "parse_url", "URL %d of the list wants a string, got %s", i,
                           luaL_typename(L, -1));
        }
        lua_pop(L, 1);
    }
}

/* Adds the URL on top of the stack. */
static int add_url(lua_State *L, struct mj__url *url, struct mj__error *error) {
    size_t size;
    const char *text = lua_tolstring(L, -1, &size);
    return mj__url_add(url, text, size, error);
}

/* Adds every URL of the list at index 1; a failure says which one it was. */
static int add_list(lua_State *L, struct mj__url *url, struct mj__error *error) {
    int count = (int)lua_objlen(L, 1);
    if (count == 0) {
        return mj__fail(error, MJ__BAD_URL, "the list holds no URL");
    }
    for (int i = 1; i <= count; i++) {
        lua_rawgeti(L, 1, i);
        if (add_url(L, url, error) != 0) {
            struct mj__error inner = *error;
            return mj__fail(error, inner.kind, "URL %d: %s", i, inner.text);
        }
        lua_pop(L, 1);
    }
    return 0;
}

/* parse_url(url): the list of its endpoints, or nil and the error. url is a string or a list of
 * them, whose servers make one list. */
static int parse_url(lua_State *L) {
    struct mj__error error;
    check_arguments(L);
    struct mj__url *url = push_url(L);
    int result;
    if (lua_istable(L, 1)) {
        result = add_list(L, url, &error);
    } else {
        lua_pushvalue(L, 1);
        result = add_url(L, url, &error);
    }
    if (result != 0) {
        return mj__lua_fail(L, &error, "parse_url", NULL, 0, NULL);
    }
    lua_createtable(L, (int)url->count, 0);
    for (size_t i = 0; i < url->count; i++) {
        push_endpoint(L, &url->endpoints[i]);
        lua_rawseti(L, -2, (int)i + 1);
    }
    mj__url_free(url);
    return 1;
}

void mj__lua_open_url(lua_State *L) {
    luaL_newmetatable(L, url_type);
    lua_pushcfunction(L, url_gc);
    lua_setfield(L, -2, "__gc");
    lua_pop(L, 1);
    lua_pushcfunction(L, parse_url);
    lua_setfield(L, -2, "parse_url");
}
