/* conn_identity.c: is this reply an answer to that request? By its code, and by what it says of
 * itself: the token, the key, the word. */
#include "conn_private.h"

#include <string.h>

static bool same(const char *a, size_t a_size, const char *b, size_t b_size) {
    return a_size == b_size && memcmp(a, b, a_size) == 0;
}

uint16_t mj__accepted_codes(const struct mj__request *request) {
    if (request->bits & MJ__META_MN) {
        return MJ__CODE(MJ__MN);
    }
    if (request->bits & MJ__META_ME) {
        return MJ__CODE(MJ__ME) | MJ__CODE(MJ__EN);
    }
    return mj__command((enum mj__command_id)request->id)->answers;
}

static bool echo_matches(const char *echo, size_t echo_size, const char *sent, size_t sent_size,
                         bool may_be_missing) {
    return echo == NULL ? may_be_missing : same(echo, echo_size, sent, sent_size);
}

/* A server echoes the key as the item was stored, whichever way it was asked for: `mg foo k` gets
 * "kZm9v b" where the item was stored with b, and `mg Zm9v b k` gets "kfoo" where it was not. */
static bool key_echo_matches(const struct mj__request *request, const struct mj__reply *reply,
                             const char *key) {
    bool sent = (request->bits & MJ__USER_ENCODED) != 0;
    bool came = (reply->marks & MJ__KEY_ENCODED) != 0;
    if (reply->key == NULL || sent == came) {
        return echo_matches(reply->key, reply->key_size, key, request->key_size,
                            reply->code != MJ__VA);
    }
    return came ? mj__base64_is(reply->key, reply->key_size, key, request->key_size)
                : mj__base64_is(key, request->key_size, reply->key, reply->key_size);
}

/* The key that stands behind ME has the form it was stored in, too, and no flag says which. */
static bool me_matches(const struct mj__conn *conn, const struct mj__request *request,
                       const struct mj__reply *reply) {
    const char *key = mj__requests_key(&conn->requests, request->key_at);
    return !conn->endpoint.options.verify ||
           same(reply->key, reply->key_size, key, request->key_size) ||
           mj__base64_is(reply->key, reply->key_size, key, request->key_size) ||
           mj__base64_is(key, request->key_size, reply->key, reply->key_size);
}

/* Servers before 1.6.18 left the token out where there is no item; VA always has it. */
static bool meta_identity(const struct mj__conn *conn, const struct mj__request *request,
                          const struct mj__reply *reply) {
    bool bare = reply->code != MJ__VA;
    if (reply->code == MJ__MN) {
        return true;
    }
    if (reply->code == MJ__ME) {
        return me_matches(conn, request, reply);
    }
    if (reply->key != NULL && !(request->bits & MJ__USER_KEY)) {
        return false; /* it asked for no key: this is another's */
    }
    if (request->bits & MJ__OPAQUE) {
        return reply->opaque == NULL
                   ? bare || request->bits & MJ__LOOSE
                   : reply->opaque_size == MJ__OPAQUE_SIZE &&
                         memcmp(reply->opaque, request->opaque, MJ__OPAQUE_SIZE) == 0;
    }
    const char *key = mj__requests_key(&conn->requests, request->key_at);
    bool with_token = (request->bits & MJ__USER_OPAQUE) != 0;
    if (with_token && !echo_matches(reply->opaque, reply->opaque_size, key + request->key_size,
                                    request->token_size, bare)) {
        return false;
    }
    if (!with_token && reply->opaque != NULL) {
        return false; /* it asked for no token: this is another's */
    }
    return !(request->bits & MJ__USER_KEY) || key_echo_matches(request, reply, key);
}

/* The classic protocol has a yes of its own for each verb: STORED is no answer to a delete. */
static bool yes_matches(const struct mj__request *request, const struct mj__reply *reply) {
    static const char *const words[] = {[MJ__VERB_STORE] = "STORED",
                                        [MJ__VERB_REMOVE] = "DELETED",
                                        [MJ__VERB_TOUCH] = "TOUCHED",
                                        [MJ__VERB_PLAIN] = "OK"};
    const char *word = words[mj__command((enum mj__command_id)request->id)->verb];
    return same(reply->text, reply->text_size, word, strlen(word));
}

static bool ascii_identity(struct mj__conn *conn, struct mj__request *request,
                           const struct mj__reply *reply) {
    if (reply->code == MJ__HD) {
        return yes_matches(request, reply);
    }
    if (reply->code == MJ__EN) {
        return request->id != MJ__TOUCH; /* it may over meta alone, where it is an mg */
    }
    if (reply->code != MJ__VA) {
        return true;
    }
    if (request->id == MJ__INCR || request->id == MJ__DECR) {
        return false; /* the same: over this protocol a counter is a line of digits */
    }
    if (reply->key == NULL) {
        return false; /* a meta reply, to a request behind this one */
    }
    if (!conn->endpoint.options.verify) {
        return true;
    }
    if (request->id == MJ__GET_MANY) {
        return mj__requests_has_key(&conn->requests, request, reply->key, reply->key_size);
    }
    const char *key = mj__requests_key(&conn->requests, request->key_at);
    return same(reply->key, reply->key_size, key, request->key_size);
}

bool mj__belongs(struct mj__conn *conn, struct mj__request *request,
                 const struct mj__reply *reply) {
    if (!(mj__accepted_codes(request) & MJ__CODE(reply->code)) ||
        request->out_end > conn->out.written) { /* no server answers what it has not read */
        return false;
    }
    return request->bits & MJ__ASCII_REPLY ? ascii_identity(conn, request, reply)
                                           : meta_identity(conn, request, reply);
}

/* The reply says itself whose it is, as far as the names that scripts choose tell. */
static bool is_named(const struct mj__conn *conn, const struct mj__request *request,
                     const struct mj__reply *reply) {
    return reply->opaque != NULL || (request->bits & MJ__USER_KEY && reply->key != NULL) ||
           (reply->code == MJ__ME && conn->endpoint.options.verify);
}

/* A token of the connection's own is given once; tokens of scripts, and keys, may come again. */
bool mj__is_unique(const struct mj__request *request, const struct mj__reply *reply) {
    return request->bits & MJ__OPAQUE && reply->opaque != NULL;
}

bool mj__quiet_spoke(struct mj__conn *conn, uint64_t seq, const struct mj__reply *reply) {
    struct mj__request *request = mj__requests_at(&conn->requests, seq);
    if (request->bits & MJ__ASCII_REPLY || reply->code == MJ__MN ||
        !mj__belongs(conn, request, reply)) {
        return false;
    }
    if (is_named(conn, request, reply)) {
        return true;
    }
    if (seq != conn->requests.head) {
        return false;
    }
    if (seq + 1 == conn->requests.tail) {
        return true;
    }
    return mj__is_noop(mj__requests_at(&conn->requests, seq + 1));
}
