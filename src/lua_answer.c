/* lua_answer.c: what a command gives for an answer, as Lua values. */
#include "lua_conn.h"
#include "lua_error.h"

#include <lauxlib.h>
#include <string.h>

void mj__lua_push_number(lua_State *L, const char *digits, size_t size) {
    uint64_t number;
    if (mj__parse_number(digits, size, &number) && number <= UINT64_C(9007199254740992)) {
        lua_pushnumber(L, (lua_Number)number);
    } else {
        lua_pushlstring(L, digits, size);
    }
}

static int push_value(lua_State *L, const struct mj__answer *answer) {
    const struct mj__reply *reply = &answer->reply;
    if (reply->code == MJ__VA && !mj__reply_is_stub(reply)) {
        lua_pushlstring(L, answer->value, (size_t)reply->value_size);
    } else {
        lua_pushnil(L);
    }
    return 1;
}

/* ---- item ------------------------------------------------------------------------------- */

static void set_digits(lua_State *L, const char *field, const char *digits, size_t size) {
    lua_pushlstring(L, digits, size);
    lua_setfield(L, -2, field);
}

static void set_number(lua_State *L, const char *field, const char *digits, size_t size) {
    mj__lua_push_number(L, digits, size);
    lua_setfield(L, -2, field);
}

static void set_boolean(lua_State *L, const char *field, bool value) {
    lua_pushboolean(L, value);
    lua_setfield(L, -2, field);
}

/* "-1" means that it never expires, which scripts say as 0. */
static void set_ttl(lua_State *L, const char *digits, size_t size) {
    bool never = size == 2 && memcmp(digits, "-1", 2) == 0;
    set_number(L, "ttl", never ? "0" : digits, never ? 1 : size);
}

static void set_meta_field(lua_State *L, const char *token, size_t size) {
    const char *rest = token + 1;
    size_t rest_size = size - 1;
    switch (token[0]) {
    case 'f':
        set_number(L, "flags", rest, rest_size);
        break;
    case 'c':
        set_digits(L, "cas", rest, rest_size);
        break;
    case 't':
        set_ttl(L, rest, rest_size);
        break;
    case 's':
        set_number(L, "size", rest, rest_size);
        break;
    case 'l':
        set_number(L, "last_access", rest, rest_size);
        break;
    case 'h':
        set_boolean(L, "hit_before", rest_size == 1 && rest[0] == '1');
        break;
    default:
        break;
    }
}

static void set_classic_fields(lua_State *L, const struct mj__reply *reply) {
    char digits[20];
    lua_pushnumber(L, reply->flags);
    lua_setfield(L, -2, "flags");
    lua_pushnumber(L, (lua_Number)reply->value_size);
    lua_setfield(L, -2, "size");
    if (reply->has_cas) {
        set_digits(L, "cas", digits, mj__write_number(digits, reply->cas));
    }
}

static int push_item(lua_State *L, const struct mj__lua_conn *self,
                     const struct mj__answer *answer) {
    const struct mj__reply *reply = &answer->reply;
    if (reply->code != MJ__VA || mj__reply_is_stub(reply)) {
        lua_pushnil(L);
        return 1;
    }
    lua_createtable(L, 0, 9);
    lua_pushlstring(L, answer->value, (size_t)reply->value_size);
    lua_setfield(L, -2, "value");
    if (mj__conn_protocol(self->conn) == MJ__ASCII) {
        set_classic_fields(L, reply);
        return 1;
    }
    const char *at = reply->text, *end = at + reply->text_size;
    size_t size;
    for (const char *token; (token = mj__next_token(&at, end, &size)) != NULL;) {
        set_meta_field(L, token, size);
    }
    set_boolean(L, "stale", (reply->marks & MJ__STALE) != 0);
    set_boolean(L, "won", (reply->marks & MJ__WON) != 0);
    return 1;
}

/* ---- meta ------------------------------------------------------------------------------- */

static int push_meta(lua_State *L, const struct mj__answer *answer) {
    static const char *const codes[] = {
        [MJ__HD] = "HD", [MJ__VA] = "VA", [MJ__EN] = "EN", [MJ__NF] = "NF",
        [MJ__NS] = "NS", [MJ__EX] = "EX", [MJ__MN] = "MN", [MJ__ME] = "ME"};
    const struct mj__reply *reply = &answer->reply;
    const char *at = reply->text, *end = at + reply->text_size;
    size_t size;
    int count = 0;
    lua_createtable(L, 0, 3);
    lua_pushstring(L, codes[reply->code]);
    lua_setfield(L, -2, "rc");
    lua_newtable(L);
    for (const char *token; (token = mj__next_token(&at, end, &size)) != NULL;) {
        if (!answer->own_token || token + 1 != reply->opaque) {
            lua_pushlstring(L, token, size);
            lua_rawseti(L, -2, ++count);
        }
    }
    lua_setfield(L, -2, "flags");
    if (reply->code == MJ__VA) {
        lua_pushlstring(L, answer->value, (size_t)reply->value_size);
        lua_setfield(L, -2, "value");
    }
    return 1;
}

/* ---- the rest --------------------------------------------------------------------------- */

static int push_count(lua_State *L, const struct mj__answer *answer) {
    const struct mj__reply *reply = &answer->reply;
    if (reply->code == MJ__VA) {
        mj__lua_push_number(L, answer->value, (size_t)reply->value_size);
    } else if (reply->code == MJ__NUMBER) {
        mj__lua_push_number(L, reply->text, reply->text_size);
    } else {
        lua_pushnil(L);
    }
    return 1;
}

static int push_stored(lua_State *L, const struct mj__answer *answer) {
    const struct mj__reply *reply = &answer->reply;
    lua_pushboolean(L, reply->code == MJ__HD);
    if (answer->command != mj__command(MJ__CAS) || reply->code == MJ__HD) {
        return 1;
    }
    lua_pushstring(L, reply->code == MJ__NF ? "missing" : "exists");
    return 2;
}

int mj__lua_push_answer(lua_State *L, const struct mj__lua_conn *self,
                        const struct mj__answer *answer) {
    const struct mj__command *command = answer->command;
    if (answer->error != NULL) {
        return mj__lua_fail(L, answer->error, command->name,
                            answer->key_size > 0 ? answer->key : NULL, answer->key_size,
                            mj__lua_conn_name(self));
    }
    switch (command->verb) {
    case MJ__VERB_READ:
        return command == mj__command(MJ__ITEM) ? push_item(L, self, answer)
                                                : push_value(L, answer);
    case MJ__VERB_COUNT:
        return push_count(L, answer);
    case MJ__VERB_META:
        return push_meta(L, answer);
    case MJ__VERB_STORE:
        return push_stored(L, answer);
    default:
        break;
    }
    if (command == mj__command(MJ__VERSION)) {
        lua_pushlstring(L, answer->reply.text, answer->reply.text_size);
    } else {
        lua_pushboolean(L, command->yes & MJ__CODE(answer->reply.code) ? 1 : 0);
    }
    return 1;
}
