#include "resolve.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    MOST_THREADS = 4,
    STACK_SIZE = 512 * 1024, /* getaddrinfo's plug-ins take more than a minimal one */
    SERVICE_SIZE = 6,        /* "65535" */
    REASON_SIZE = 128
};

enum state {
    WAITING, /* in `waiting`, for a thread */
    RUNNING, /* a thread's own, but for done and arg */
    ANSWERED /* in `answered`, or being handed out */
};

struct mj__lookup {
    struct mj__lookup *next;
    struct shared *shared;
    enum state state; /* guarded by the lock */
    mj__resolve_fn
        *done; /* NULL: nobody wants it any more; the loop's thread alone looks at it */
    void *arg;
    struct addrinfo *list;
    int code;        /* of getaddrinfo */
    int system_code; /* errno, for EAI_SYSTEM */
    char service[SERVICE_SIZE];
    char host[];
};

struct queue {
    struct mj__lookup *first, **end;
};

/* What the threads and the resolver share. It lives until the last of them lets go. */
struct shared {
    pthread_mutex_t lock; /* guards all of this */
    struct queue waiting, answered;
    unsigned threads;
    bool closed; /* the resolver is gone, and with it the eventfd */
    int eventfd;
};

struct mj__resolver {
    struct mj__loop *loop;
    struct shared *shared;
    struct mj__watch watch; /* of the eventfd, from the first name on */
    struct queue literals;  /* answered without a thread */
    struct mj__deferred hand_out;
};

/* ---- queues ---- */

static void queue_init(struct queue *queue) {
    queue->first = NULL;
    queue->end = &queue->first;
}

static void queue_push(struct queue *queue, struct mj__lookup *lookup) {
    lookup->next = NULL;
    *queue->end = lookup;
    queue->end = &lookup->next;
}

static struct mj__lookup *queue_pop(struct queue *queue) {
    struct mj__lookup *lookup = queue->first;
    if (lookup != NULL) {
        queue->first = lookup->next;
        if (queue->first == NULL) {
            queue->end = &queue->first;
        }
    }
    return lookup;
}

static void queue_remove(struct queue *queue, struct mj__lookup *lookup) {
    struct mj__lookup **link = &queue->first;
    while (*link != lookup) {
        link = &(*link)->next;
    }
    *link = lookup->next;
    if (lookup->next == NULL) {
        queue->end = link;
    }
}

static void lookup_free(struct mj__lookup *lookup) {
    if (lookup->list != NULL) {
        freeaddrinfo(lookup->list);
    }
    free(lookup);
}

static void queue_free(struct queue *queue) {
    struct mj__lookup *lookup;
    while ((lookup = queue_pop(queue)) != NULL) {
        lookup_free(lookup);
    }
}

/* ---- threads ---- */

static struct shared *shared_new(void) {
    struct shared *shared = calloc(1, sizeof *shared);
    if (shared == NULL) {
        return NULL;
    }
    if (pthread_mutex_init(&shared->lock, NULL) != 0) {
        free(shared);
        return NULL;
    }
    queue_init(&shared->waiting);
    queue_init(&shared->answered);
    shared->eventfd = -1;
    return shared;
}

static void shared_free(struct shared *shared) {
    pthread_mutex_destroy(&shared->lock);
    free(shared);
}

static void ask(struct mj__lookup *lookup, int flags) {
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC,
        .ai_socktype = SOCK_STREAM,
        .ai_flags = AI_NUMERICSERV | flags,
    };
    lookup->code = getaddrinfo(lookup->host, lookup->service, &hints, &lookup->list);
    lookup->system_code = errno;
    if (lookup->code != 0) {
        lookup->list = NULL;
    }
}

/* Under the lock, so that the eventfd is not closed meanwhile. It cannot block: its counter
 * never comes near its end. */
static void answer(struct shared *shared, struct mj__lookup *lookup) {
    if (shared->closed) {
        lookup_free(lookup);
        return;
    }
    lookup->state = ANSWERED;
    queue_push(&shared->answered, lookup);
    eventfd_write(shared->eventfd, 1);
}

/* A helper thread takes look-ups as long as there are some. */
static void *help(void *arg) {
    struct shared *shared = arg;
    struct mj__lookup *lookup;
    pthread_mutex_lock(&shared->lock);
    while ((lookup = queue_pop(&shared->waiting)) != NULL) {
        lookup->state = RUNNING;
        pthread_mutex_unlock(&shared->lock);
        ask(lookup, 0);
        pthread_mutex_lock(&shared->lock);
        answer(shared, lookup);
    }
    shared->threads--;
    bool last = shared->closed && shared->threads == 0;
    pthread_mutex_unlock(&shared->lock);
    if (last) {
        shared_free(shared);
    }
    return NULL;
}

/* Every signal is blocked in it: the host's handlers run on the host's own threads. */
static int thread_start(struct shared *shared) {
    pthread_attr_t attributes;
    int code = pthread_attr_init(&attributes);
    if (code != 0) {
        return code;
    }
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_SIZE);
    sigset_t every, before;
    sigfillset(&every);
    pthread_t thread;
    pthread_sigmask(SIG_SETMASK, &every, &before);
    code = pthread_create(&thread, &attributes, help, shared);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return code;
}

/* Queues the look-up for a thread, a new one if fewer than 4 run. Fails only where none runs.
 */
static int give_to_thread(struct shared *shared, struct mj__lookup *lookup) {
    int code = 0;
    pthread_mutex_lock(&shared->lock);
    lookup->state = WAITING;
    queue_push(&shared->waiting, lookup);
    if (shared->threads < MOST_THREADS) {
        code = thread_start(shared);
        if (code == 0) {
            shared->threads++;
        } else if (shared->threads > 0) {
            code = 0;
        } else {
            queue_remove(&shared->waiting, lookup);
        }
    }
    pthread_mutex_unlock(&shared->lock);
    return code;
}

/* ---- answers ---- */

static const char *reason_of(const struct mj__lookup *lookup, char *out, size_t size) {
    if (lookup->code == 0) {
        return NULL;
    }
    if (lookup->code == EAI_SYSTEM) {
        return strerror_r(lookup->system_code, out, size);
    }
    if (lookup->code == EAI_NONAME && strchr(lookup->host, ':') != NULL) {
        return strchr(lookup->host, '%') == NULL ? "not an IPv6 address"
                                                 : "no IPv6 address in a zone of this machine";
    }
    return gai_strerror(lookup->code);
}

static void hand_out(struct queue *queue) {
    struct mj__lookup *lookup;
    while ((lookup = queue_pop(queue)) != NULL) {
        if (lookup->done != NULL) {
            char text[REASON_SIZE];
            struct addrinfo *list = lookup->list;
            lookup->list = NULL;
            lookup->done(lookup->arg, list, reason_of(lookup, text, sizeof text));
        }
        lookup_free(lookup);
    }
}

static void hand_out_literals(struct mj__deferred *call) {
    struct mj__resolver *resolver =
        (struct mj__resolver *)((char *)call - offsetof(struct mj__resolver, hand_out));
    hand_out(&resolver->literals);
}

static void answers_came(struct mj__watch *watch, bool readable, bool writable) {
    (void)readable, (void)writable;
    struct mj__resolver *resolver =
        (struct mj__resolver *)((char *)watch - offsetof(struct mj__resolver, watch));
    struct shared *shared = resolver->shared;
    struct queue answered;
    queue_init(&answered);
    eventfd_t count;
    pthread_mutex_lock(&shared->lock);
    eventfd_read(shared->eventfd, &count);
    struct mj__lookup *lookup;
    while ((lookup = queue_pop(&shared->answered)) != NULL) {
        queue_push(&answered, lookup);
    }
    pthread_mutex_unlock(&shared->lock);
    hand_out(&answered);
}

/* ---- the resolver ---- */

struct mj__resolver *mj__resolver_open(struct mj__loop *loop, struct mj__error *error) {
    struct mj__resolver *resolver = calloc(1, sizeof *resolver);
    struct shared *shared = resolver != NULL ? shared_new() : NULL;
    if (shared == NULL) {
        free(resolver);
        mj__fail(error, MJ__NO_MEMORY, "no memory to look up names");
        return NULL;
    }
    resolver->loop = loop;
    resolver->shared = shared;
    resolver->hand_out.run = hand_out_literals;
    resolver->watch.ready = answers_came;
    queue_init(&resolver->literals);
    return resolver;
}

void mj__resolver_close(struct mj__resolver *resolver) {
    if (resolver == NULL) {
        return;
    }
    struct shared *shared = resolver->shared;
    mj__loop_cancel(resolver->loop, &resolver->hand_out);
    mj__watch_close(&resolver->watch);
    queue_free(&resolver->literals);
    free(resolver);

    pthread_mutex_lock(&shared->lock);
    shared->closed = true;
    if (shared->eventfd >= 0) {
        close(shared->eventfd);
    }
    queue_free(&shared->waiting);
    queue_free(&shared->answered);
    bool last = shared->threads == 0;
    pthread_mutex_unlock(&shared->lock);
    if (last) {
        shared_free(shared);
    }
}

/* Makes the eventfd through which threads wake the loop, at the first name. */
static int listen_to_threads(struct mj__resolver *resolver, struct mj__error *error) {
    if (resolver->watch.loop != NULL) {
        return 0;
    }
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (fd < 0) {
        return mj__fail(error, MJ__RESOLVE, "no descriptor to look up a name with: %s",
                        strerror(errno));
    }
    if (mj__watch_open(resolver->loop, &resolver->watch, fd) != 0 ||
        mj__watch_arm(&resolver->watch, true, false) != 0) {
        mj__watch_close(&resolver->watch);
        close(fd);
        return mj__fail(error, MJ__NO_MEMORY, "no memory to look up a name");
    }
    resolver->shared->eventfd = fd; /* no thread runs yet */
    return 0;
}

static struct mj__lookup *lookup_new(struct mj__resolver *resolver, const char *host,
                                     uint16_t port, mj__resolve_fn *done, void *arg) {
    size_t size = strlen(host) + 1;
    struct mj__lookup *lookup = calloc(1, sizeof *lookup + size);
    if (lookup == NULL) {
        return NULL;
    }
    memcpy(lookup->host, host, size);
    snprintf(lookup->service, sizeof lookup->service, "%u", (unsigned)port);
    lookup->shared = resolver->shared;
    lookup->done = done;
    lookup->arg = arg;
    return lookup;
}

/* A colon is in no name, so what has one need not be looked for elsewhere. */
static bool answer_literal(struct mj__resolver *resolver, struct mj__lookup *lookup) {
    ask(lookup, AI_NUMERICHOST);
    if (lookup->code == EAI_NONAME && strchr(lookup->host, ':') == NULL) {
        return false;
    }
    lookup->state = ANSWERED;
    queue_push(&resolver->literals, lookup);
    mj__loop_flush(resolver->loop, &resolver->hand_out);
    return true;
}

struct mj__lookup *mj__resolve(struct mj__resolver *resolver, const char *host, uint16_t port,
                               mj__resolve_fn *done, void *arg, struct mj__error *error) {
    struct mj__lookup *lookup = lookup_new(resolver, host, port, done, arg);
    if (lookup == NULL) {
        mj__fail(error, MJ__NO_MEMORY, "no memory to look up a name");
    } else if (answer_literal(resolver, lookup)) {
        return lookup;
    } else if (listen_to_threads(resolver, error) == 0) {
        int code = give_to_thread(resolver->shared, lookup);
        if (code == 0) {
            return lookup;
        }
        mj__fail(error, MJ__RESOLVE, "no thread to look up a name with: %s", strerror(code));
    }
    error->phase = MJ__PHASE_RESOLVE;
    free(lookup);
    return NULL;
}

void mj__resolve_abandon(struct mj__lookup *lookup) {
    struct shared *shared = lookup->shared;
    lookup->done = NULL;
    pthread_mutex_lock(&shared->lock);
    bool waits = lookup->state == WAITING;
    if (waits) {
        queue_remove(&shared->waiting, lookup);
    }
    pthread_mutex_unlock(&shared->lock);
    if (waits) {
        lookup_free(lookup);
    }
}
