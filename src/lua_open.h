/* lua_open.h: the bindings. Each is called once, when a state is made, with the table
 * `moonjay.core` on top of the stack, and adds its functions to it. They may throw. */
#ifndef MJ_LUA_OPEN_H
#define MJ_LUA_OPEN_H

#include <lua.h>

void mj__lua_open_error(lua_State *L);
void mj__lua_open_url(lua_State *L);
void mj__lua_open_task(lua_State *L);
void mj__lua_open_conn(lua_State *L); /* pipelines too */

#endif
