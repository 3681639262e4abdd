/* lua_call.c: a command's arguments, from the Lua stack to a call. */
#include "lua_conn.h"
#include "lua_error.h"
#include "spell.h"

#include <lauxlib.h>
#include <math.h>
#include <string.h>
#include <time.h>

/* Reading either stops at the first wrong type (a throw) or goes on to the values (an error). */
struct reader {
    lua_State *L;
    int base, top; /* the first argument, and the last */
    enum mj__command_id id;
    const char *carrier; /* "conn" or "pipeline" */
    struct mj__call *call;
    int into;
    struct mj__error *error; /* NULL: types only */
    bool failed;
};

/* Asked of every argument that may be left out: what is behind the last costs no call. */
static bool is_absent(const struct reader *reader, int index) {
    return index > reader->top || lua_isnil(reader->L, index);
}

static int misuse(struct reader *reader, const char *what, const char *wanted, int index) {
    char function[40];
    lua_State *L = reader->L;
    const char *got = lua_isnone(L, index) ? "nothing" : luaL_typename(L, index);
    snprintf(function, sizeof function, "%s:%s", reader->carrier,
             mj__command(reader->id)->name);
    return mj__lua_misuse(L, function, "%s must be %s, got %s", what, wanted, got);
}

static void bad_value(struct reader *reader, const char *what, const char *wanted) {
    if (reader->error != NULL && !reader->failed) {
        mj__fail(reader->error, MJ__BAD_VALUE, "%s is out of range: it takes %s", what, wanted);
    }
    reader->failed = true;
}

static const char *read_string(struct reader *reader, int index, const char *what,
                               size_t *size) {
    if (lua_type(reader->L, index) != LUA_TSTRING) {
        misuse(reader, what, "a string", index);
    }
    return lua_tolstring(reader->L, index, size);
}

/* A whole number from 0 to max, as a number or as a string of digits. */
static uint64_t read_unsigned(struct reader *reader, int index, const char *what,
                              uint64_t max) {
    lua_State *L = reader->L;
    char range[64];
    uint64_t number = 0;
    bool good = false;
    if (lua_type(L, index) == LUA_TNUMBER) {
        double value = lua_tonumber(L, index);
        good = value >= 0 && value <= 9007199254740992.0 && floor(value) == value;
        number = good ? (uint64_t)value : 0;
    } else if (lua_type(L, index) == LUA_TSTRING) {
        size_t size;
        const char *digits = lua_tolstring(L, index, &size);
        good = mj__parse_number(digits, size, &number);
    } else {
        misuse(reader, what, "a number or a string of digits", index);
    }
    if (!good || number > max) {
        snprintf(range, sizeof range, "0 to %llu, as a number or as digits",
                 (unsigned long long)max);
        bad_value(reader, what, range);
        return 0;
    }
    return number;
}

static void read_ttl(struct reader *reader, int index) {
    lua_State *L = reader->L;
    struct mj__error error;
    if (lua_type(L, index) != LUA_TNUMBER) {
        misuse(reader, "ttl", "a number of seconds", index);
    }
    double seconds = lua_tonumber(L, index);
    int64_t unix_now = seconds > 86400 ? (int64_t)time(NULL) : 0;
    if (mj__exptime(seconds, unix_now, &reader->call->ttl, &error) != 0) {
        if (reader->error != NULL && !reader->failed) {
            *reader->error = error;
        }
        reader->failed = true;
    }
}

static bool read_boolean(struct reader *reader, int index, const char *what) {
    if (!lua_isboolean(reader->L, index)) {
        misuse(reader, what, "true or false", index);
    }
    return lua_toboolean(reader->L, index) != 0;
}

/* ---- options ---------------------------------------------------------------------------- */

static const char *const option_names[] = {"ttl", "flags", "quiet", "initial", "touch", "into"};
static const uint16_t option_bits[] = {MJ__WITH_TTL,     MJ__WITH_FLAGS, MJ__WITH_QUIET,
                                       MJ__WITH_INITIAL, MJ__WITH_TOUCH, MJ__WITH_INTO};
enum { OPTIONS = sizeof option_bits / sizeof *option_bits };

static uint16_t option_bit(struct reader *reader, int index) {
    uint16_t allowed = mj__command(reader->id)->options;
    const char *names[OPTIONS];
    char function[40];
    size_t count = 0, size;
    if (lua_type(reader->L, index) != LUA_TSTRING) {
        misuse(reader, "an option's name", "a string", index);
    }
    const char *name = lua_tolstring(reader->L, index, &size);
    for (size_t i = 0; i < OPTIONS; i++) {
        if (allowed & option_bits[i]) {
            if (strcmp(name, option_names[i]) == 0) {
                return option_bits[i];
            }
            names[count++] = option_names[i];
        }
    }
    const char *nearest = mj__nearest(name, size, names, count);
    snprintf(function, sizeof function, "%s:%s", reader->carrier,
             mj__command(reader->id)->name);
    mj__lua_misuse(reader->L, function, "unknown option '%s'%s%s%s", name,
                   nearest != NULL ? ", did you mean '" : "", nearest != NULL ? nearest : "",
                   nearest != NULL ? "'?" : "");
    return 0;
}

static void read_option(struct reader *reader, uint16_t bit, int index) {
    struct mj__call *call = reader->call;
    switch (bit) {
    case MJ__WITH_TTL:
    case MJ__WITH_TOUCH:
        read_ttl(reader, index);
        break;
    case MJ__WITH_FLAGS:
        call->flags = (uint32_t)read_unsigned(reader, index, "flags", UINT32_MAX);
        break;
    case MJ__WITH_INITIAL:
        call->initial = read_unsigned(reader, index, "initial", UINT64_MAX);
        break;
    case MJ__WITH_QUIET:
        if (!read_boolean(reader, index, "quiet")) {
            return;
        }
        break;
    default:
        if (!mj__lua_is_buffer(reader->L, index)) {
            misuse(reader, "into", "a string.buffer", index);
        }
        reader->into = -1;
        break;
    }
    call->given |= bit;
}

static void read_options(struct reader *reader, int index) {
    lua_State *L = reader->L;
    if (is_absent(reader, index)) {
        return;
    }
    if (!lua_istable(L, index)) {
        misuse(reader, "options", "a table such as { ttl = 60 }", index);
    }
    lua_pushnil(L);
    while (lua_next(L, index) != 0) {
        read_option(reader, option_bit(reader, lua_gettop(L) - 1), lua_gettop(L));
        lua_pop(L, 1);
    }
    if (reader->into != 0) {
        lua_getfield(L, index, "into"); /* stays on the stack, where its index keeps it */
        reader->into = lua_gettop(L);
    }
}

/* ---- meta ------------------------------------------------------------------------------- */

static bool flag_is_sound(const char *flag, size_t size) {
    for (size_t i = 0; i < size; i++) {
        if ((unsigned char)flag[i] <= 0x20 || flag[i] == 0x7f) {
            return false;
        }
    }
    return size > 0;
}

/* { "v", "t", "O12" } to "v t O12", which stays on the stack. */
static void read_meta_flags(struct reader *reader, int index) {
    lua_State *L = reader->L;
    luaL_Buffer text;
    if (is_absent(reader, index)) {
        reader->call->text = "";
        return;
    }
    if (!lua_istable(L, index)) {
        misuse(reader, "flags", "a list of strings", index);
    }
    int count = (int)lua_objlen(L, index);
    luaL_buffinit(L, &text);
    for (int i = 1; i <= count; i++) {
        size_t size;
        lua_rawgeti(L, index, i);
        if (lua_type(L, -1) != LUA_TSTRING) {
            misuse(reader, "every flag", "a string", lua_gettop(L));
        }
        const char *flag = lua_tolstring(L, -1, &size);
        if (!flag_is_sound(flag, size)) {
            bad_value(reader, "a meta flag", "a letter and a token, without blanks");
        }
        if (i > 1) { /* the flag is on top: the blank goes below it */
            lua_pushliteral(L, " ");
            lua_insert(L, -2);
            lua_concat(L, 2);
        }
        luaL_addvalue(&text);
    }
    luaL_pushresult(&text);
    reader->call->text = lua_tolstring(L, -1, &reader->call->text_size);
    if (reader->call->text_size > 1024) {
        bad_value(reader, "the list of meta flags", "1024 bytes at most");
    }
}

/* meta(cmd, key, flags [, value]) */
static void read_meta(struct reader *reader) {
    static const char *const words[] = {"mg", "ms", "md", "ma", "me", "mn"};
    struct mj__call *call = reader->call;
    int base = reader->base;
    size_t size;
    const char *word = read_string(reader, base, "cmd", &size);
    size_t at = 0;
    while (at < 6 && strcmp(words[at], word) != 0) {
        at++;
    }
    if (at == 6) {
        misuse(reader, "cmd", "one of mg ms md ma me mn", base);
    }
    memcpy(call->meta, word, 2);
    if (at == 5 && is_absent(reader, base + 1)) {
        call->key = "";
        call->key_size = 0;
    } else {
        call->key = read_string(reader, base + 1, "key", &call->key_size);
    }
    if (at == 1) {
        call->value = read_string(reader, base + 3, "value of an ms", &call->value_size);
        call->given |= MJ__WITH_VALUE;
    } else if (!is_absent(reader, base + 3)) {
        misuse(reader, "value", "left out (only ms carries one)", base + 3);
    }
    read_meta_flags(reader, base + 2);
}

/* ---- all -------------------------------------------------------------------------------- */

static void read_arguments(struct reader *reader) {
    const struct mj__command *command = mj__command(reader->id);
    struct mj__call *call = reader->call;
    int at = reader->base;
    call->id = reader->id;
    if (command->verb == MJ__VERB_META) {
        read_meta(reader);
        return;
    }
    if (command->takes & MJ__WITH_KEY) {
        call->key = read_string(reader, at++, "key", &call->key_size);
    }
    if (command->takes & MJ__WITH_VALUE) {
        call->value = read_string(reader, at++, "value", &call->value_size);
        call->given |= MJ__WITH_VALUE;
    }
    if (command->takes & MJ__WITH_TTL) {
        if (command->takes & MJ__WITH_KEY || !is_absent(reader, at)) {
            read_ttl(reader, at);
            call->given |= MJ__WITH_TTL;
        }
        at++;
    }
    if (command->takes & MJ__WITH_CAS) {
        call->cas = read_unsigned(reader, at++, "token", UINT64_MAX);
        call->given |= MJ__WITH_CAS;
    }
    if (command->takes & MJ__WITH_DELTA) {
        call->delta =
            is_absent(reader, at) ? 1 : read_unsigned(reader, at, "delta", UINT64_MAX);
        at++;
    }
    if (reader->id == MJ__STATS && !is_absent(reader, at)) {
        call->text = read_string(reader, at++, "section", &call->text_size);
    }
    if (command->options != 0) {
        read_options(reader, at++);
    }
    if (!is_absent(reader, at)) {
        misuse(reader, "an argument behind the last", "left out", at);
    }
}

void mj__lua_check_call(lua_State *L, int base, enum mj__command_id id, const char *carrier) {
    struct mj__call call = {0};
    struct reader reader = {.L = L,
                            .base = base,
                            .top = lua_gettop(L),
                            .id = id,
                            .carrier = carrier,
                            .call = &call};
    read_arguments(&reader);
}

static int check_key(const struct mj__lua_conn *self, struct mj__call *call,
                     struct mj__error *error) {
    const struct mj__options *options = &mj__conn_endpoint(self->conn)->options;
    bool meta = call->id == MJ__META_COMMAND; /* its key is sent as it is */
    if (meta && call->key_size == 0 && memcmp(call->meta, "mn", 2) == 0) {
        return 0;
    }
    if (mj__key_check(call->key, call->key_size, options->binary_keys && !meta,
                      &call->key_encoded, error) != 0) {
        return -1;
    }
    if (call->key_encoded && mj__conn_protocol(self->conn) == MJ__ASCII) {
        return mj__fail(error, MJ__UNSUPPORTED,
                        "the key needs encoding, which the ascii protocol does not know");
    }
    return 0;
}

static int check_values(const struct mj__lua_conn *self, const struct mj__call *call,
                        struct mj__error *error) {
    const struct mj__options *options = &mj__conn_endpoint(self->conn)->options;
    bool ascii = mj__conn_protocol(self->conn) == MJ__ASCII;
    if (call->value_size > options->max_value) {
        return mj__fail(error, MJ__TOO_LARGE,
                        "the value has %zu bytes, more than max_value (%llu)", call->value_size,
                        (unsigned long long)options->max_value);
    }
    if (call->id == MJ__META_COMMAND && ascii) {
        return mj__fail(error, MJ__UNSUPPORTED,
                        "meta commands need the meta protocol; this connection speaks ascii");
    }
    if (ascii && (call->given & MJ__WITH_INITIAL) && (call->given & MJ__WITH_QUIET)) {
        return mj__fail(
            error, MJ__UNSUPPORTED,
            "quiet with initial needs the meta protocol: over ascii it takes replies");
    }
    if (call->id == MJ__STATS && !flag_is_sound(call->text, call->text_size) &&
        call->text_size > 0) {
        return mj__fail(error, MJ__BAD_VALUE, "a section of stats is one word without blanks");
    }
    return 0;
}

/* The commonest call by far: get, item or delete of a key, without options. */
static bool is_key_alone(lua_State *L, int base, const struct mj__command *command) {
    int top = lua_gettop(L);
    if (command->takes != MJ__WITH_KEY || command->verb == MJ__VERB_META) {
        return false;
    }
    while (top > base && lua_isnil(L, top)) {
        top--;
    }
    return top == base && lua_type(L, base) == LUA_TSTRING;
}

int mj__lua_read_call(lua_State *L, int base, enum mj__command_id id, const char *carrier,
                      const struct mj__lua_conn *self, struct mj__call *call, int *into,
                      struct mj__error *error) {
    memset(call, 0, sizeof *call);
    if (is_key_alone(L, base, mj__command(id))) {
        call->id = id;
        call->key = lua_tolstring(L, base, &call->key_size);
        *into = 0;
        return check_key(self, call, error);
    }
    struct reader reader = {.L = L,
                            .base = base,
                            .top = lua_gettop(L),
                            .id = id,
                            .carrier = carrier,
                            .call = call,
                            .error = error};
    read_arguments(&reader);
    *into = reader.into;
    if (reader.failed) {
        return -1;
    }
    if ((mj__command(id)->takes & MJ__WITH_KEY) && check_key(self, call, error) != 0) {
        return -1;
    }
    return check_values(self, call, error);
}
