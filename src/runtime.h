/* runtime.h: what the rooms above the loop share: one Lua state, its loop, its tasks. Internal. */
#ifndef MJ_RUNTIME_H
#define MJ_RUNTIME_H

#include "loop.h"
#include "moonjay.h"
#include "task.h"

#include <lua.h>

struct mj__pool;
struct mj__resolver;

struct mj__loop *mj__runtime_loop(struct mj__runtime *);
/* The main Lua thread: for protected calls from callbacks, never for scripts. */
lua_State *mj__runtime_lua(struct mj__runtime *);
/* The resolver, made at first use. NULL: *error says why. */
struct mj__resolver *mj__runtime_resolver(struct mj__runtime *, struct mj__error *error);
/* The buffers that connections borrow (buffer.h). */
struct mj__pool *mj__runtime_pool(struct mj__runtime *);
/* True once the Lua state is being closed, by mj_close or by os.exit(code, true): every wait has
 * been abandoned, no task runs any more, and the host hears of nothing. Finalizers of userdata run
 * now, and may still use the loop and the pool. */
bool mj__runtime_closing(const struct mj__runtime *);

typedef void mj__protected_fn(lua_State *L, void *arg);

/* Calls fn(L, arg) under lua_pcall on the main thread, from a callback of the loop; its stack is
 * empty, and what it leaves there is dropped. 0; -1 when memory ran out, or 1 when it threw otherwise;
 * the error is then reported to the host's error function, once. Leaves the stack as it was.
 * Allocates nothing itself. */
int mj__runtime_protect(struct mj__runtime *, mj__protected_fn *, void *arg);
/* The same for an fn that may be called again: what a finalizer of the script's throws, where fn
 * collects garbage, does not keep it from its work. */
int mj__runtime_insist(struct mj__runtime *, mj__protected_fn *, void *arg);
/* True inside one of these: what runs of a script's now is a finalizer. */
bool mj__runtime_protecting(const struct mj__runtime *);

#endif
