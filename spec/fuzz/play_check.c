#include "play.h"

#include <string.h>

static bool is_prefix(const struct text *part, const struct text *whole) {
    return part->size <= whole->size &&
           (part->size == 0 || memcmp(part->bytes, whole->bytes, part->size) == 0);
}

static bool is_refused(const struct text *told) {
    return told->size > 0 && (*told->bytes == 'r' || *told->bytes == 'f');
}

/* ---- everyone is told, once ------------------------------------------------------------- */

static void check_ends(const struct play *play) {
    for (size_t i = 0; i < play->count; i++) {
        const struct part *part = &play->parts[i];
        HOLDS(part->over == part->waits);
    }
}

/* ---- the k-th request is told the k-th reply -------------------------------------------- */

/* What a request is told is what the server said to it, to the letter, and in full unless an error
 * ended it. */
static void check_part(const struct part *part, const struct text *said, bool whole) {
    HOLDS(is_prefix(&part->told, said));
    HOLDS(!part->answered || (whole && part->told.size == said->size));
}

static void check_order(const struct play *play) {
    const struct text *written = sim_written();
    const char *said = text_bytes(&play->said);
    struct asked asked;
    size_t at = 0;
    bool whole = true;
    for (size_t i = 0; i < play->heard_count; i++) {
        const struct heard *heard = &play->heard[i];
        struct text told = {0};
        HOLDS(server_read(written->bytes + heard->at, written->size - heard->at, &asked) > 0);
        if (whole) {
            size_t length = server_reply(&told, &asked, said + at, play->said.size - at);
            whole = length > 0;
            at += length;
        }
        if (heard->part >= 0) {
            check_part(&play->parts[heard->part], &told, whole);
        }
        text_free(&told);
    }
    /* The rest it has not heard. It may refuse the one that it has begun to read. */
    bool begun = written->size > play->heard_size;
    for (size_t i = play->next_heard; i < play->ordered; i++) {
        const struct part *part = &play->parts[play->order[i]];
        HOLDS(!part->answered || (begun && is_refused(&part->told)));
        begun = false;
    }
}

/* ---- an honest server is believed ------------------------------------------------------- */

static void check_truth(const struct play *play) {
    bool certain =
        play->calm && !play->blamed && !play->alike && !(play->erred && play->quiet > 0);
    uint64_t refused = 0;
    for (size_t i = 0; i < play->count; i++) {
        const struct part *part = &play->parts[i];
        bool sure = part->known && (part->spoke || play->fenced);
        bool told = part->told.size > 0 || (certain && sure && part->waits);
        if (told && !(part->letter->traits & CLUMSY)) {
            HOLDS(part->known);
            text_agree("a request is told what an honest server said to it", &part->truth,
                       &part->told);
        }
        certain &= part->known || !part->queued;
        refused += part->letter->traits & UNHEARD && part->spoke;
    }
    if (certain && play->fenced) {
        HOLDS(mj__conn_counters(play->conn)->quiet_failed == refused);
    }
}

void play_check(const struct play *play) {
    check_ends(play);
    if (play->quiet == 0) {
        check_order(play);
    }
    if (play->honest) {
        check_truth(play);
    }
}
