#include "play.h"

#include <string.h>

/* What an error quotes of bytes that nobody asked for is cut off: it is what had come by then. After
 * a done function has closed the connection, `sent` depends on that too: an answer that was there
 * already proves that the server had the request. */
void told_error(struct text *text, const struct mj__error *error, bool meddled) {
    const char *end = strstr(error->text, "asked for");
    text_print(text, "%s %s %s ", mj__kind_name(error->kind), mj__phase_name(error->phase),
               meddled ? "" : mj__sent_name(error->sent));
    text_quote(text, error->text, end ? (size_t)(end - error->text) : strlen(error->text));
}

/* ---- sinks ------------------------------------------------------------------------------ */

static struct part *part_of(struct mj__sink *sink) {
    return (struct part *)(void *)((char *)sink - offsetof(struct part, sink));
}

/* Some of the room that is wanted, mostly not all. */
static char *reserve(struct mj__sink *sink, size_t want, size_t *got) {
    struct part *part = part_of(sink);
    HOLDS(!part->over && want > 0);
    if (part->letter->traits & CLUMSY && part->sunk.size > 2) {
        return NULL;
    }
    size_t size = part->sunk.size, room = 1 + size * 3 % want;
    static const char unread[64];
    for (*got = 0; *got < room; *got += sizeof unread) { /* makes the room, and fills it */
        text_add(&part->sunk, unread, sizeof unread);
    }
    part->sunk.size = size;
    *got = room;
    return part->sunk.bytes + size;
}

static void commit(struct mj__sink *sink, size_t count) {
    struct part *part = part_of(sink);
    HOLDS(!part->over && part->sunk.size + count <= part->sunk.room);
    part->sunk.size += count;
}

struct mj__sink told_sink(void) {
    return (struct mj__sink){.reserve = reserve, .commit = commit};
}

/* ---- answers ---------------------------------------------------------------------------- */

/* Whether the server has said, since the connection began, a value that names this token. */
static bool was_said(const struct play *play, const struct part *part, struct word value) {
    const char *at = play->said.bytes, *end = at + play->said.size;
    char token[MJ__OPAQUE_SIZE + 2] = "O";
    memcpy(token + 1, part->token, MJ__OPAQUE_SIZE);
    while ((at = memmem(at, (size_t)(end - at), "VA ", 3)) != NULL) {
        struct word word = {0};
        uint64_t size = 0;
        bool named = false;
        const char *line_end = memmem(at, (size_t)(end - at), "\r\n", 2);
        const char *behind = line_end != NULL ? line_end + 2 : end;
        at += 3;
        bool sized =
            line_end != NULL && word_next(&at, line_end, &word) && word_number(word, &size);
        while (sized && word_next(&at, line_end, &word)) {
            named |= word_is(word, token);
        }
        if (named && size == value.size && (size_t)(end - behind) >= size + 2 &&
            memcmp(behind, value.at, value.size) == 0) {
            return true;
        }
    }
    return false;
}

/* A value reaches only the request whose token or key it names. */
static void check_name(const struct part *part, const struct mj__answer *answer,
                       struct word value) {
    const struct play *play = part->play;
    const struct mj__reply *reply = &answer->reply;
    HOLDS(answer->own_token == part->has_token);
    if (answer->own_token && reply->opaque != NULL) {
        HOLDS(reply->opaque_size == MJ__OPAQUE_SIZE);
        HOLDS(memcmp(reply->opaque, part->token, MJ__OPAQUE_SIZE) == 0);
    }
    if (reply->has_value && play->verified && reply->text == NULL) { /* classic */
        size_t size = strlen(part->key);
        HOLDS(reply->key_size >= size && memcmp(reply->key, part->key, size) == 0);
        HOLDS(reply->key_size == size || part->letter->id == MJ__GET_MANY);
    }
    if (reply->has_value && answer->own_token && part->letter->meta == NULL &&
        play->quiet > 0) {
        HOLDS(was_said(play, part, value));
    }
}

static void tell_reply(struct text *told, const struct mj__reply *reply, struct word value) {
    static const char *const codes[] = {
        [MJ__HD] = "HD", [MJ__VA] = "VA", [MJ__EN] = "EN", [MJ__NF] = "NF",
        [MJ__NS] = "NS", [MJ__EX] = "EX", [MJ__MN] = "MN", [MJ__ME] = "ME"};
    bool classic_word = reply->text_size > 0 && *reply->text != ' ';
    if (reply->code == MJ__VA && reply->text == NULL) {
        struct text number = {0};
        text_print(told, "VALUE ");
        text_quote(told, reply->key, reply->key_size);
        text_print(&number, "%u", reply->flags);
        text_quote(told, number.bytes, number.size);
        text_clear(&number);
        text_print(&number, "%llu", (unsigned long long)reply->cas);
        text_quote(told, reply->has_cas ? number.bytes : NULL, number.size);
        text_free(&number);
    } else if (reply->code == MJ__STAT) {
        text_print(told, "STAT ");
        text_quote(told, reply->key, reply->key_size);
        text_quote(told, reply->text, reply->text_size);
    } else if (reply->code > MJ__ME || classic_word) {
        text_print(told, "= ");
        text_quote(told, reply->text, reply->text_size);
    } else {
        text_print(told, "%s ", codes[reply->code]);
        text_quote(told, reply->text, reply->text_size);
    }
    if (reply->has_value) {
        text_quote(told, value.at, value.size);
    }
}

/* The first whose time is up is one that the server has: what has not left waits for nothing. */
static void check_timeout(struct play *play, const struct mj__error *error) {
    bool first = !play->timed_out && !play->gave_up && !play->blocked && play->quiet == 0;
    HOLDS(!first || error->phase == MJ__PHASE_READ);
    play->timed_out = true;
}

/* A server's own error is an answer; any other is what the request ends with instead. */
static void tell_failure(struct part *part, const struct mj__error *error) {
    bool said = error->sent == MJ__SENT_YES &&
                (error->kind == MJ__SERVER_ERROR || error->kind == MJ__CLIENT_ERROR ||
                 error->kind == MJ__AUTH);
    HOLDS(error->kind != MJ__KIND_NONE && error->phase != MJ__PHASE_NONE);
    if (error->kind == MJ__TIMEOUT) {
        check_timeout(part->play, error);
    }
    if (said) {
        text_print(&part->told, error->kind == MJ__SERVER_ERROR ? "failed " : "refused ");
        part->answered = true;
    }
    told_error(&part->outcome, error, part->play->meddled != 0);
}

static void tell(struct part *part, const struct mj__answer *answer) {
    const struct mj__reply *reply = &answer->reply;
    struct word value = {answer->value, (size_t)reply->value_size};
    if (answer->error != NULL) {
        HOLDS(!answer->more);
        tell_failure(part, answer->error);
        return;
    }
    if (reply->has_value && answer->value == NULL) {
        HOLDS(part->letter->traits & SINKING && part->sunk.size == value.size);
        value.at = part->sunk.bytes;
    } else {
        HOLDS(part->sunk.size == 0);
    }
    HOLDS(!answer->more || part->letter->id == MJ__GET_MANY || part->letter->id == MJ__STATS);
    check_name(part, answer, value);
    tell_reply(&part->told, reply, value);
    part->answered = !answer->more;
}

static void give_up_next(struct play *play, uint32_t index) {
    struct mj__error error;
    for (size_t i = index + 1; i < play->count; i++) {
        struct part *part = &play->parts[i];
        if (part->queued && part->waits && !part->over) {
            mj__conn_abandon(play->conn, part->seq, &error);
            part->over = play->gave_up = true;
            return;
        }
    }
}

void told_answer(void *arg, uint32_t index, const struct mj__answer *answer) {
    struct play *play = arg;
    struct part *part = &play->parts[index];
    HOLDS(index < play->count && part->queued && part->waits && !part->over);
    HOLDS(answer->command == mj__command(part->letter->id) && answer->owner == play);
    tell(part, answer);
    part->over = !answer->more;
    if (part->over && part->letter->traits & (CLOSES | GIVES_UP)) {
        play->meddled |= part->letter->traits & (CLOSES | GIVES_UP);
        play->calm = false;
        if (part->letter->traits & CLOSES) {
            mj__conn_close(play->conn);
        } else {
            give_up_next(play, index);
        }
    }
}
