/* conn.c: a whole connection: the input says what is asked, and what the server says.
 *
 * An input is text, so that a corpus line can be read and a mutation means something:
 *
 *     @ggS\nVA 1 O0000\r\nx\r\n\x07d-\n\x01
 *
 * First a byte that says how to connect (see `open_conn`). Then sections: letters that ask and do
 * things (see `letters` and `do_deed`), a line feed, and what the server says, up to the byte 7
 * or the end. In that the bytes 1 to 5 are an honest answer to the oldest request that has none
 * yet (yes, no, SERVER_ERROR, CLIENT_ERROR, yes with a large value), 8 is the end of the stream,
 * 14 a reset, 15 some filling; all others are said as they are. */
#include "conn.h"

#include "play.h"

#include <errno.h>
#include <string.h>

/* ---- how it is connected ---------------------------------------------------------------- */

/* Bits of the first byte. */
enum {
    IN_ASCII = 1,
    UNVERIFIED = 2,
    GATHERED = 4,
    ASKED_PROTOCOL = 8,
    WITH_LOGIN = 16,
    FEW = 32
};

static void open_conn(struct play *play, unsigned how, enum cut cut) {
    bool direct = !(how & GATHERED) != (cut == CHUNKS); /* must not matter either */
    struct text url = {0};
    text_print(&url,
               "memcache+unix://%s/s?protocol=%s&verify=%s&direct_read=%s&max_value=100k"
               "&max_inflight=%d",
               how & WITH_LOGIN ? "user:secret@" : "",
               how & ASKED_PROTOCOL ? "auto"
               : how & IN_ASCII     ? "ascii"
                                    : "meta",
               how & UNVERIFIED ? "false" : "true", direct ? "true" : "false",
               how & FEW ? 4 : 1000);
    play_open(play, url.bytes, url.size);
    text_free(&url);
}

/* ---- what is done beside asking --------------------------------------------------------- */

/* False: the letter is no deed. */
static bool do_deed(struct play *play, char letter) {
    const mj__time ms = MJ__SECOND / 1000;
    switch (letter) {
    case '.':
        play_turns(play, 1);
        return true;
    case '-':
        play_give_up(play, true);
        break;
    case '~':
        play_give_up(play, false);
        break;
    case '*':
        play_give_up_all(play);
        break;
    case '!':
        mj__conn_close(play->conn);
        break;
    case '<': /* the server stops reading */
        sim_take(0);
        play->blocked = true;
        break;
    case '>':
        sim_take(SIZE_MAX);
        break;
    case '1':
    case '2':
    case '3':
        sim_take((size_t)1 << (4 * (letter - '1')));
        play->blocked = true;
        break;
    case '+':
        sim_pass(400 * ms);
        break;
    case '_':
        sim_pass(1200 * ms);
        break;
    case '$':
        sim_pass(4000 * ms);
        break;
    default:
        return false;
    }
    play->calm = false;
    return true;
}

/* ---- what the server says --------------------------------------------------------------- */

enum { NEXT_SECTION = 7, END = 8, RESET = 14, FILLING = 15, FILLING_SIZE = 4096 };

static void fill(struct text *stage) {
    char bytes[FILLING_SIZE];
    for (int i = 0; i < FILLING_SIZE; i++) {
        bytes[i] = (char)('a' + (i + i / 26) % 26);
    }
    text_add(stage, bytes, sizeof bytes);
}

/* Says a section's bytes; returns how many of them there were. */
static size_t say_section(struct play *play, const uint8_t *bytes, size_t size) {
    struct text stage = {0};
    size_t at = 0;
    for (; at < size && bytes[at] != NEXT_SECTION; at++) {
        if (bytes[at] >= 1 && bytes[at] <= 5) {
            play_answer(play, &stage, bytes[at]);
        } else if (bytes[at] == FILLING) {
            play->honest = false;
            if (play_bulk(play)) {
                fill(&stage);
            }
        } else if (bytes[at] == END || bytes[at] == RESET) {
            play_say(play, &stage);
            play_hang_up(play, bytes[at] == END ? 0 : ECONNRESET);
        } else {
            play->honest = false;
            text_add(&stage, &bytes[at], 1);
        }
    }
    play_say(play, &stage);
    text_free(&stage);
    return at + (at < size);
}

/* ---- a play ----------------------------------------------------------------------------- */

static size_t ask_section(struct play *play, const uint8_t *bytes, size_t size) {
    size_t at = 0;
    for (; at < size && bytes[at] != '\n'; at++) {
        if (!do_deed(play, (char)bytes[at])) {
            play_ask(play, (char)bytes[at]);
        }
    }
    play_settle(play);
    return at + (at < size);
}

static void perform(struct play *play, enum cut cut, const uint8_t *data, size_t size) {
    play_begin(play, cut, data, size);
    open_conn(play, data[0], cut);
    for (size_t at = 1; at < size;) {
        at += ask_section(play, data + at, size - at);
        at += say_section(play, data + at, size - at);
        play_serve_noops(play);
    }
    play_end(play);
}

/* The outcome depends on the cuts where a server answers what it has not been asked yet, and the
 * connection asks it meanwhile: a noop behind quiet requests when one of them has failed, which
 * protocol it speaks behind a login, what had to wait for room. And where others wait for room,
 * more or fewer quiet requests stand before such a noop, and somebody who gives up the next finds
 * it in line or not; also where the connection closes meanwhile. */
static bool must_agree(const struct play *play, unsigned how) {
    bool asks_twice = how & WITH_LOGIN && how & ASKED_PROTOCOL;
    bool plain = play->quiet == 0 && !play->meddled && !play->erred && play->calm;
    if (play->meddled == (CLOSES | GIVES_UP)) {
        return false;
    }
    return play->honest ? !play->crowded || plain
                        : !play->crowded && play->quiet == 0 && !asks_twice;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct play first, play;
    if (size == 0) {
        return 0;
    }
    perform(&first, WHOLE, data, size);
    for (int cut = BYTES; cut < CUTS; cut++) {
        perform(&play, (enum cut)cut, data, size);
        if (must_agree(&first, data[0])) {
            text_agree("the outcome is the same for every cut", &first.log, &play.log);
        }
        play_clear(&play);
    }
    play_clear(&first);
    return 0;
}
