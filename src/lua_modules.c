#include "lua_modules.h"

#include <lauxlib.h>
#include <lua.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char folder_variable[] = "MOONJAY_LUA";

static bool is_ours(const char *name) {
    static const char root[] = "moonjay";
    size_t size = sizeof root - 1;
    return strncmp(name, root, size) == 0 && (name[size] == '\0' || name[size] == '.');
}

/* Pushes "moonjay/wait.lua" for "moonjay.wait" and "moonjay/init.lua" for "moonjay". */
static const char *push_file_name(lua_State *L, const char *name) {
    bool root = strchr(name, '.') == NULL;
    luaL_gsub(L, name, ".", "/");
    lua_pushstring(L, root ? "/init.lua" : ".lua");
    lua_concat(L, 2);
    return lua_tostring(L, -1);
}

struct source {
    FILE *file;
    char part[4096];
};

static const char *read_part(lua_State *L, void *arg, size_t *size) {
    (void)L;
    struct source *source = arg;
    *size = fread(source->part, 1, sizeof source->part, source->file);
    return *size > 0 ? source->part : NULL;
}

/* Pushes the chunk of a file in the folder that the environment names. False, nothing pushed: no
 * such file. The chunk's name is as in the bytecode, so that messages read the same. */
static bool push_from_folder(lua_State *L, const char *name) {
    const char *folder = getenv(folder_variable);
    if (folder == NULL || *folder == '\0') {
        return false;
    }
    int top = lua_gettop(L);
    const char *file_name = push_file_name(L, name);
    const char *path = lua_pushfstring(L, "%s/%s", folder, file_name);
    const char *chunk_name = lua_pushfstring(L, "@%s", file_name);
    struct source source = {.file = fopen(path, "rbe")};
    if (source.file == NULL) {
        lua_settop(L, top);
        return false;
    }
    int status = lua_loadx(L, read_part, &source, chunk_name, "t");
    fclose(source.file);
    if (status != 0) {
        lua_error(L);
    }
    lua_replace(L, top + 1);
    lua_settop(L, top + 1);
    return true;
}

static bool push_linked(lua_State *L, const char *name) {
    for (const struct mj__lua_module *module = mj__lua_modules; module->name != NULL;
         module++) {
        if (strcmp(module->name, name) == 0) {
            if (luaL_loadbufferx(L, module->data, module->size, name, "b") != 0) {
                lua_error(L);
            }
            return true;
        }
    }
    return false;
}

/* What `require` calls. After an error it would refuse the module for ever ("loop or previous
 * error"), and one that ran out of memory may well do better next time. */
static int run(lua_State *L) {
    lua_settop(L, 1);
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_pushvalue(L, 1);
    if (lua_pcall(L, 1, 1, 0) == 0) {
        return 1;
    }
    lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
    lua_pushvalue(L, 1);
    lua_pushnil(L);
    lua_rawset(L, -3);
    lua_pop(L, 1);
    return lua_error(L);
}

/* A searcher of `require`. */
static int load(lua_State *L) {
    const char *name = luaL_checkstring(L, 1);
    if (!is_ours(name)) {
        return 0;
    }
    if (push_from_folder(L, name) || push_linked(L, name)) {
        lua_pushcclosure(L, run, 1);
    } else {
        lua_pushfstring(L, "\n\tno module '%s' in moonjay", name);
    }
    return 1;
}

void mj__lua_modules_open(lua_State *L) {
    lua_getglobal(L, "package");
    lua_getfield(L, -1, "loaders");
    for (int i = (int)lua_objlen(L, -1); i >= 2; i--) {
        lua_rawgeti(L, -1, i);
        lua_rawseti(L, -2, i + 1);
    }
    lua_pushcfunction(L, load);
    lua_rawseti(L, -2, 2);
    lua_pop(L, 2);
}

void mj__lua_modules_push(lua_State *L, const char *name) {
    if (!push_from_folder(L, name) && !push_linked(L, name)) {
        luaL_error(L, "no module '%s' in moonjay", name);
    }
}
