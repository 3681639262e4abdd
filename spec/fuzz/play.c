#include "play.h"

#include <stdlib.h>
#include <string.h>

enum {
    LENT_SIZE = 2000,
    LARGE_SIZE = 17000, /* more than a receive buffer holds */
    EDGE = 400,         /* bytes at both ends of a stage that are said one by one */
    TURNS_MAX = 100000,
    SETTLE_TURNS = 200,
    BULK_MAX = 6
};

static const char stored[] = {'v', 'a', 'l', 'u', 'e'}; /* a large value begins so too */

static const struct letter letters[] = {
    {'g', 0, MJ__GET, 0, NULL},
    {'G', SINKING, MJ__GET, 0, NULL},
    {'B', SINKING | CLUMSY, MJ__GET, 0, NULL},
    {'y', GIVES_UP, MJ__GET, 0, NULL},
    {'z', CLOSES, MJ__GET, 0, NULL},
    {'b', META_ONLY, MJ__GET, 0, NULL}, /* with a key that is encoded */
    {'i', 0, MJ__ITEM, 0, NULL},
    {'I', 0, MJ__ITEM, MJ__WITH_TOUCH, NULL},
    {'h', 0, MJ__GAT, MJ__WITH_TTL, NULL},
    {'t', 0, MJ__TOUCH, MJ__WITH_TTL, NULL},
    {'s', 0, MJ__SET, MJ__WITH_VALUE, NULL},
    {'S', QUIET | UNHEARD, MJ__SET, MJ__WITH_VALUE | MJ__WITH_QUIET, NULL},
    {'l', LARGE, MJ__SET, MJ__WITH_VALUE | MJ__WITH_FLAGS | MJ__WITH_TTL, NULL},
    {'a', 0, MJ__ADD, MJ__WITH_VALUE, NULL},
    {'A', QUIET | UNHEARD, MJ__ADD, MJ__WITH_VALUE | MJ__WITH_QUIET, NULL},
    {'P', QUIET | UNHEARD | LARGE, MJ__PREPEND, MJ__WITH_VALUE | MJ__WITH_QUIET, NULL},
    {'c', 0, MJ__CAS, MJ__WITH_VALUE | MJ__WITH_CAS, NULL},
    {'d', 0, MJ__DELETE, 0, NULL},
    {'D', QUIET | UNHEARD, MJ__DELETE, MJ__WITH_QUIET, NULL},
    {'n', 0, MJ__INCR, 0, NULL},
    {'N', QUIET | UNHEARD, MJ__DECR, MJ__WITH_QUIET, NULL},
    {'J', META_ONLY, MJ__INCR, MJ__WITH_INITIAL, NULL},
    {'m', 0, MJ__GET_MANY, 0, NULL},
    {'o', 0, MJ__NOOP, 0, NULL},
    {'v', 0, MJ__VERSION, 0, NULL},
    {'x', 0, MJ__STATS, 0, NULL},
    {'f', 0, MJ__FLUSH_ALL, 0, NULL},
    {'k', META_ONLY, MJ__META_COMMAND, 0, "mg v k"},
    {'K', META_ONLY, MJ__META_COMMAND, 0, "mg v Omine"},
    {'e', META_ONLY, MJ__META_COMMAND, 0, "mg t f"},
    {'q', META_ONLY | QUIET, MJ__META_COMMAND, 0, "mg v q"},
    {'Q', META_ONLY | QUIET, MJ__META_COMMAND, 0, "md q"},
    {'Y', META_ONLY | QUIET, MJ__META_COMMAND, 0, "mg v q Omine"},
    {'w', META_ONLY, MJ__META_COMMAND, MJ__WITH_VALUE, "ms c"},
    {'W', META_ONLY | QUIET, MJ__META_COMMAND, MJ__WITH_VALUE, "ms q k"},
    {'j', META_ONLY, MJ__META_COMMAND, 0, "ma v N0"},
    {'u', META_ONLY, MJ__META_COMMAND, 0, "me"},
    {'U', META_ONLY, MJ__META_COMMAND, 0, "mn"},
};

static const struct letter *find_letter(char letter) {
    for (size_t i = 0; i < sizeof letters / sizeof *letters; i++) {
        if (letters[i].letter == letter) {
            return &letters[i];
        }
    }
    return NULL;
}

/* ---- hearing ---------------------------------------------------------------------------- */

/* Every client of a new stream starts anew, and so does its server. */
static void follow_stream(struct play *play) {
    if (play->stream != sim_connects()) {
        play->stream = sim_connects();
        play->heard_count = play->heard_size = play->answered = 0;
        text_clear(&play->said);
    }
}

/* The part whose request this can be: the next that was queued. */
static struct part *next_queued(struct play *play) {
    return play->next_heard < play->ordered ? &play->parts[play->order[play->next_heard]]
                                            : NULL;
}

/* The connection's noops cannot be told from a script's, but for those of `meta`, with a key. */
static bool is_noop(const struct asked *asked) {
    return word_is(*asked->words, "mn") || word_is(*asked->words, "version");
}

static bool may_be_noop(const struct play *play, const struct part *part,
                        const struct asked *asked) {
    bool meta = mj__conn_protocol(play->conn) == MJ__META;
    const char *own = part->letter->meta;
    return part->letter->id == MJ__VERSION ? word_is(*asked->words, "version")
           : part->letter->id == MJ__NOOP  ? word_is(*asked->words, meta ? "mn" : "version")
                                           : own != NULL && asked->count > 1;
}

static bool is_login(const struct asked *asked) {
    return asked->count == 5 && word_is(asked->words[1], "login");
}

/* "AWsx" for the key 01 6b 31: what mj__call.key_encoded makes of a part's key. */
static bool is_encoded(struct word word, const char *key) {
    return mj__base64_is(word.at, word.size, key, strlen(key));
}

static void check_request(const struct part *part, const struct asked *asked) {
    bool touch = word_is(*asked->words, "gat") || word_is(*asked->words, "gats");
    if (mj__command(part->letter->id)->takes & MJ__WITH_KEY) {
        struct word key = asked->words[touch ? 2 : 1];
        HOLDS(part->letter->letter == 'b' && asked->meta ? is_encoded(key, part->key)
                                                         : word_is(key, part->key));
    }
    HOLDS((asked->block.at != NULL) == ((part->letter->given & MJ__WITH_VALUE) != 0));
    if (asked->block.at != NULL) {
        size_t size = part->letter->traits & LARGE ? LENT_SIZE : sizeof stored;
        HOLDS(asked->block.size == size);
        HOLDS(memcmp(asked->block.at, stored, sizeof stored) == 0);
    }
    HOLDS(asked_quiet(asked) == ((part->letter->traits & QUIET) != 0));
}

static void note_token(struct part *part, const struct asked *asked) {
    struct word last = asked->words[asked->count - 1];
    if (asked->meta && *last.at == 'O' && last.size == MJ__OPAQUE_SIZE + 1 &&
        !word_is(last, "Omine")) {
        part->has_token = true;
        memcpy(part->token, last.at + 1, MJ__OPAQUE_SIZE);
    }
}

/* Whose request was heard; -1: the connection's own. */
static int identify(struct play *play, const struct asked *asked) {
    struct part *part = next_queued(play);
    if (is_login(asked) ||
        (is_noop(asked) && (part == NULL || !may_be_noop(play, part, asked)))) {
        return -1;
    }
    HOLDS(part != NULL);
    check_request(part, asked);
    note_token(part, asked);
    return (int)play->order[play->next_heard++];
}

static void hear(struct play *play) {
    const struct text *written = sim_written();
    struct asked asked;
    follow_stream(play);
    while (written->size > play->heard_size) {
        size_t length = server_read(written->bytes + play->heard_size,
                                    written->size - play->heard_size, &asked);
        if (length == 0) {
            return;
        }
        HOLDS(play->heard_count < sizeof play->heard / sizeof *play->heard);
        play->heard[play->heard_count++] =
            (struct heard){identify(play, &asked), play->heard_size};
        play->heard_size += length;
    }
}

static void submit(struct play *play, struct part *part);

/* Those that were told of room come, in the order in which they waited. */
static void use_room(struct play *play) {
    for (size_t i = 0; i < play->count; i++) {
        struct part *part = &play->parts[i];
        if (part->granted) {
            part->granted = false;
            mj__conn_redeem(play->conn, &part->parked);
            submit(play, part);
            HOLDS(part->queued || !mj__conn_is_open(play->conn));
        }
    }
}

void play_turns(struct play *play, int count) {
    while (count-- > 0) {
        HOLDS(mj__loop_turn(play->loop, false) == 0);
        hear(play);
        use_room(play);
    }
}

void play_settle(struct play *play) {
    size_t before = SIZE_MAX;
    for (int i = 0; sim_written()->size != before; i++) {
        if (i == SETTLE_TURNS) {
            sim_take(0);
        }
        before = sim_written()->size;
        play_turns(play, 3);
    }
}

/* ---- asking ----------------------------------------------------------------------------- */

static void release(void *arg) {
    struct part *part = arg;
    HOLDS(part->large != NULL); /* once */
    free(part->large);
    part->large = NULL;
}

static char *make_large(void) {
    char *bytes = malloc(LENT_SIZE);
    HOLDS(bytes != NULL);
    memset(bytes, 'x', LENT_SIZE);
    memcpy(bytes, stored, sizeof stored);
    return bytes;
}

static void fill_call(struct mj__call *call, struct part *part, struct text *many) {
    const struct letter *letter = part->letter;
    *call = (struct mj__call){.id = letter->id, .given = letter->given};
    call->key = part->key;
    call->key_size = strlen(part->key);
    call->key_encoded = part->key[0] == '\1';
    call->ttl = 60;
    call->flags = 3;
    call->cas = call->delta = 5;
    if (letter->given & MJ__WITH_VALUE) {
        call->value = part->large != NULL ? part->large : stored;
        call->value_size = part->large != NULL ? LENT_SIZE : sizeof stored;
    }
    if (letter->meta != NULL) {
        memcpy(call->meta, letter->meta, 2);
        call->text = letter->meta + (letter->meta[2] == ' ' ? 3 : 2);
        call->text_size = strlen(call->text);
    } else if (letter->id == MJ__GET_MANY) {
        text_print(many, "%s %s-b %s-c", part->key, part->key, part->key);
        call->text = many->bytes;
        call->text_size = many->size;
    }
}

static void refuse(struct part *part, const struct mj__error *error) {
    told_error(&part->outcome, error, false);
    part->over = part->waits;
    free(part->large); /* it stayed ours */
    part->large = NULL;
}

static void on_room(struct mj__parked *parked, const struct mj__error *error) {
    struct part *part = (struct part *)(void *)((char *)parked - offsetof(struct part, parked));
    HOLDS(!part->queued && !part->over && !part->granted);
    if (error == NULL) {
        part->granted = true;
    } else {
        refuse(part, error);
    }
}

static void submit(struct play *play, struct part *part) {
    struct mj__error error;
    struct mj__call call;
    struct text many = {0};
    uint8_t traits = part->letter->traits;
    part->large = part->large != NULL ? part->large : traits & LARGE ? make_large() : NULL;
    fill_call(&call, part, &many);
    const struct mj__lent lent = {part->large, LENT_SIZE, release, part};
    int status = mj__conn_submit(play->conn, &call, traits & LARGE ? &lent : NULL,
                                 traits & SINKING ? &part->sink : NULL,
                                 traits & UNHEARD ? NULL : told_answer, play,
                                 (uint32_t)(part - play->parts), &part->seq, &error);
    text_free(&many);
    part->queued = status == MJ__SUBMITTED;
    if (part->queued) {
        play->order[play->ordered++] = (size_t)(part - play->parts);
        play->quiet += (traits & QUIET) != 0;
        play->alike |= traits & QUIET && part->letter->meta != NULL &&
                       strstr(part->letter->meta, "Omine") != NULL;
    } else if (status == MJ__FULL) {
        part->parked.ready = on_room;
        mj__conn_park(play->conn, &part->parked);
        play->crowded = true;
    } else {
        refuse(part, &error);
    }
}

void play_ask(struct play *play, char name) {
    const struct letter *letter = find_letter(name);
    bool meta = mj__conn_protocol(play->conn) == MJ__META;
    if (letter == NULL || play->count == PLAY_REQUESTS ||
        (letter->traits & META_ONLY && !meta)) {
        return;
    }
    struct part *part = &play->parts[play->count];
    part->letter = letter;
    part->play = play;
    part->sink = told_sink();
    part->waits = !(letter->traits & UNHEARD);
    struct text key = {part->key, 0, sizeof part->key};
    text_print(&key, "%sk%zu", name == 'b' ? "\1" : "", play->count);
    play->count++;
    submit(play, part);
}

static void given_up(struct part *part, const struct mj__error *error) {
    part->over = part->play->gave_up = true;
    text_print(&part->outcome, "given up %s %s", mj__phase_name(error->phase),
               mj__sent_name(error->sent));
}

void play_give_up(struct play *play, bool oldest) {
    struct mj__error error = {0};
    for (size_t i = 0; i < play->count; i++) {
        struct part *part = &play->parts[oldest ? i : play->count - 1 - i];
        if (part->queued && part->waits && !part->over) {
            mj__conn_abandon(play->conn, part->seq, &error);
            given_up(part, &error);
            return;
        }
    }
}

void play_give_up_all(struct play *play) {
    struct mj__error error = {0};
    mj__conn_abandon_all(play->conn, told_answer, play, &error);
    for (size_t i = 0; i < play->count; i++) {
        if (play->parts[i].queued && play->parts[i].waits && !play->parts[i].over) {
            given_up(&play->parts[i], &(struct mj__error){0});
        }
    }
}

/* ---- saying ----------------------------------------------------------------------------- */

static void asked_at(size_t at, struct asked *asked) {
    const struct text *written = sim_written();
    HOLDS(server_read(written->bytes + at, written->size - at, asked) > 0);
}

static void answer_noops(struct play *play, struct text *stage) {
    struct asked asked;
    for (; play->answered < play->heard_count; play->answered++) {
        const struct heard *heard = &play->heard[play->answered];
        asked_at(heard->at, &asked);
        if (!is_noop(&asked) && !is_login(&asked)) {
            return;
        }
        size_t before = stage->size;
        server_answer(stage, &asked, YES, 0);
        if (heard->part >= 0) {
            struct part *part = &play->parts[heard->part];
            part->known = part->spoke = true;
            server_reply(&part->truth, &asked, stage->bytes + before, stage->size - before);
        }
    }
}

bool play_bulk(struct play *play) {
    return play->bulk++ < BULK_MAX;
}

void play_answer(struct play *play, struct text *stage, unsigned number) {
    static const enum answer answers[] = {YES, NO, SERVER_FAILS, CLIENT_ERRS, YES};
    struct asked asked;
    answer_noops(play, stage);
    if (play->answered == play->heard_count) {
        return;
    }
    const struct heard *heard = &play->heard[play->answered++];
    HOLDS(heard->part >= 0);
    struct part *part = &play->parts[heard->part];
    asked_at(heard->at, &asked);
    size_t before = stage->size;
    server_answer(stage, &asked, answers[number - 1],
                  number == 5 && play_bulk(play) ? LARGE_SIZE : 0);
    part->known = true;
    part->spoke = stage->size > before;
    if (part->spoke) {
        server_reply(&part->truth, &asked, stage->bytes + before, stage->size - before);
    } else {
        server_silence(&part->truth, &asked);
    }
    play->erred |= number == 3 || number == 4;
    play->blamed |= number == 4 && asked.block.at != NULL;
}

/* A stage of many bytes is not said byte by byte in its middle. */
static size_t next_piece(struct play *play, size_t at, size_t left) {
    size_t count = knife_next(&play->knife, left);
    bool edge = at < EDGE || left < EDGE;
    return play->knife.cut == BYTES && !edge ? 97 : count;
}

void play_say(struct play *play, struct text *stage) {
    for (size_t at = 0; at < stage->size;) {
        size_t count = next_piece(play, at, stage->size - at);
        follow_stream(play);
        text_add(&play->said, stage->bytes + at, count);
        sim_say(stage->bytes + at, count);
        at += count;
        for (int turns = 0; turns == 0 || sim_unread(); turns++) {
            HOLDS(turns < TURNS_MAX);
            play_turns(play, 1);
        }
    }
    text_clear(stage);
    play_settle(play);
}

void play_hang_up(struct play *play, int code) {
    play->calm = false;
    sim_hang_up(code);
    play_turns(play, 3);
}

void play_serve_noops(struct play *play) {
    struct text stage = {0};
    for (size_t before = play->answered + 1; play->honest && before != play->answered;) {
        before = play->answered;
        answer_noops(play, &stage);
        play_say(play, &stage);
    }
    text_free(&stage);
}

/* ---- life ------------------------------------------------------------------------------- */

static void on_opened(void *arg, struct mj__conn *conn, const struct mj__error *error) {
    struct play *play = arg;
    HOLDS(play->opened++ == 0 && (play->conn == conn || play->conn == NULL));
    play->failed = error != NULL;
    if (error != NULL) {
        told_error(&play->log, error, false);
    }
}

static void on_closed(void *arg, struct mj__conn *conn, const struct mj__error *error) {
    struct play *play = arg;
    HOLDS(play->opened == 1 && !play->failed && play->closed++ == 0 && play->conn == conn);
    told_error(&play->log, error, false);
}

static void on_quiet_failed(void *arg, struct mj__conn *conn, const struct mj__error *error,
                            const struct mj__command *command, const char *key,
                            size_t key_size) {
    struct play *play = arg;
    HOLDS(play->conn == conn && play->closed == 0);
    told_error(&play->quiet_log, error, false);
    text_print(&play->quiet_log, "%s ", command != NULL ? command->name : "");
    text_quote(&play->quiet_log, key, key_size);
}

void play_begin(struct play *play, enum cut cut, const uint8_t *data, size_t size) {
    struct mj__error error;
    play->knife = knife_for(cut, data, size);
    play->honest = play->calm = true;
    sim_reset();
    play->loop = mj__loop_open(&error);
    play->pool = mj__pool_open(&play->used, 0);
    HOLDS(play->pool != NULL);
}

void play_open(struct play *play, const char *text, size_t size) {
    const struct mj__conn_owner owner = {
        .opened = on_opened, .closed = on_closed, .quiet_failed = on_quiet_failed, .arg = play};
    struct mj__error error;
    struct mj__url url;
    HOLDS(mj__url_parse(text, size, &url, &error) == 0);
    play->verified = url.endpoints[0].options.verify;
    play->conn = mj__conn_open(play->loop, play->pool, NULL, &url.endpoints[0], &owner, &error);
    HOLDS(play->conn != NULL);
    mj__url_free(&url);
    play_turns(play, 3);
}

static void make_log(struct play *play) {
    const struct mj__conn_counters *counters = mj__conn_counters(play->conn);
    for (size_t i = 0; i < play->count; i++) {
        const struct part *part = &play->parts[i];
        text_print(&play->log, "\n%zu %c ", i, part->letter->letter);
        if (!(part->letter->traits & CLUMSY)) { /* it depends on what it was given at once */
            text_quote(&play->log, part->told.bytes, part->told.size);
            text_quote(&play->log, part->outcome.bytes, part->outcome.size);
        }
    }
    /* What comes at once is counted before a done function, or a handshake that fails, ends it. */
    if (!play->meddled && !play->failed) {
        text_quote(&play->log, play->quiet_log.bytes, play->quiet_log.size);
        text_print(
            &play->log, "%llu %llu %llu %llu %llu %llu %llu %llu",
            (unsigned long long)counters->replies, (unsigned long long)counters->timeouts,
            (unsigned long long)counters->abandoned, (unsigned long long)counters->late,
            (unsigned long long)counters->quiet, (unsigned long long)counters->quiet_failed,
            (unsigned long long)counters->hits, (unsigned long long)counters->misses);
    }
}

void play_end(struct play *play) {
    play->fenced = !mj__conn_has_unfenced(play->conn);
    for (int i = 0; i < 4; i++) { /* a handshake may be tried again over a new stream */
        sim_hang_up(0);
        play_turns(play, 3);
    }
    HOLDS(play->opened == 1 && play->closed == !play->failed && !sim_is_open());
    play_check(play);
    make_log(play);
    mj__conn_free(play->conn);
    HOLDS(mj__loop_turn(play->loop, false) == 0);
    mj__loop_close(play->loop);
    mj__pool_close(play->pool);
    HOLDS(play->used == 0);
    for (size_t i = 0; i < play->count; i++) {
        HOLDS(play->parts[i].large == NULL);
    }
}

void play_clear(struct play *play) {
    for (size_t i = 0; i < play->count; i++) {
        struct part *part = &play->parts[i];
        text_free(&part->told);
        text_free(&part->truth);
        text_free(&part->outcome);
        text_free(&part->sunk);
    }
    struct text kept[] = {play->said, play->quiet_log, play->log};
    memset(play, 0, offsetof(struct play, parts) + play->count * sizeof *play->parts);
    memset(&play->count, 0, sizeof *play - offsetof(struct play, count));
    play->said = kept[0];
    play->quiet_log = kept[1];
    play->log = kept[2];
    text_clear(&play->said);
    text_clear(&play->quiet_log);
    text_clear(&play->log);
}
