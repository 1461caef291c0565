/* Loops on torch's threads while the machine is quiet, and on threads of our own while it is not.
 *
 * torch's loops end when every thread has reported, also one that got no core to run on: beside other processes
 * the caller waits milliseconds for a thread that did nothing. So the time from the end of the caller's part to
 * that of the loop is watched. Where it is long, parts of the next loops are timed: if threads have been without a
 * core, and not just had more to do than the caller, the machine is busy for a while. Then the caller takes all parts
 * that nobody else has begun, and waits only for those that somebody has; if that takes long as well, fewer threads
 * are asked, in the end none.
 * Where it is this process that takes all the cores, by threads of another library that wait for work in vain, it
 * soon ends, and torch's threads are tried again at once.
 */
typedef long long i64;
typedef void (*body_t)(i64, i64, void *);
typedef int (*loop_t)(i64, i64, i64, body_t, void *);

static loop_t torch_loop;
i64 scorch_busy_until; /* of the clock that Python calls monotonic */

#ifdef _WIN32
int scorch_parallel_for(i64 begin, i64 end, i64 grain, body_t body, void *context) {
    return torch_loop(begin, end, grain, body, context);
}
void scorch_forget_threads(void) {}
#else

enum { MOST_THREADS = 256, OPAQUE = 256 };
enum { ENOUGH = 6, PER_LATE = 3, MOST_LATE = 12 }; /* late loops count, others take back: one alone is an accident */
enum { TRIES = 16 }; /* loops of one thread before two are tried again */
enum { LATE = 200000, FIRST_WAIT = 2000000, LAST_WAIT = 160000000 }; /* nanoseconds; threads wake up in fewer */
enum { FEWEST_TIMED = 3 };
#ifdef __APPLE__
enum { MONOTONIC = 6, OWN_TIME = 12, THREAD_TIME = 16, SETMASK = 3 };
#else
enum { MONOTONIC = 1, OWN_TIME = 2, THREAD_TIME = 3, SETMASK = 2 };
#endif

int clock_gettime(int, void *);
int pthread_create(void *, const void *, void *(*)(void *), void *);
int pthread_detach(void *);
int pthread_mutex_init(void *, const void *);
int pthread_mutex_lock(void *);
int pthread_mutex_trylock(void *);
int pthread_mutex_unlock(void *);
int pthread_cond_init(void *, const void *);
int pthread_cond_wait(void *, void *);
int pthread_cond_broadcast(void *);
int pthread_sigmask(int, const void *, void *);
int sigfillset(void *);

typedef struct { char bytes[OPAQUE] __attribute__((aligned(64))); } opaque;

static struct {
    opaque used, lock, begun, left; /* one loop at a time; what follows; a loop begins; all threads have left it */
    int is_ready, threads;
    i64 number, end, inside, most;
    body_t body;
    void *context;
    i64 next __attribute__((aligned(64)));
} pool;

static i64 next_wait = FIRST_WAIT, own_threads = MOST_THREADS, late_loops, tries;

static i64 cores = MOST_THREADS;

static i64 read_clock(int clock) {
    long time[2];
    clock_gettime(clock, time);
    return (i64)time[0] * 1000000000 + time[1];
}

static i64 now(void) { return read_clock(MONOTONIC); }

/* Whether threads of this process were running on all cores, or nearly, for a time. */
int scorch_has_all_cores(i64 spent, i64 time) { return 10 * spent > (10 * cores - 3) * time; }

static void run_parts(body_t body, void *context, i64 end) {
    i64 part;
    while ((part = __atomic_fetch_add(&pool.next, 1, __ATOMIC_RELAXED)) < end) body(part, part + 1, context);
}

static void *serve(void *unused) {
    i64 seen = 0;
    (void)unused;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        while (seen == pool.number || __atomic_load_n(&pool.next, __ATOMIC_RELAXED) >= pool.end ||
               pool.inside >= pool.most)
            pthread_cond_wait(&pool.begun, &pool.lock);
        seen = pool.number;
        pool.inside++;
        body_t body = pool.body;
        void *context = pool.context;
        i64 end = pool.end;
        pthread_mutex_unlock(&pool.lock);
        run_parts(body, context, end);
        pthread_mutex_lock(&pool.lock);
        if (!--pool.inside) pthread_cond_broadcast(&pool.left);
    }
    return 0;
}

static void start(i64 wanted) {
    opaque thread, blocked, before;
    if (!pool.is_ready) {
        pthread_mutex_init(&pool.lock, 0);
        pthread_cond_init(&pool.begun, 0);
        pthread_cond_init(&pool.left, 0);
        pool.is_ready = 1;
    }
    if (wanted > MOST_THREADS) wanted = MOST_THREADS;
    if (pool.threads >= wanted) return;
    sigfillset(&blocked); /* signals are for the threads of the program */
    pthread_sigmask(SETMASK, &blocked, &before);
    while (pool.threads < wanted && !pthread_create(&thread, 0, serve, 0)) {
        pthread_detach(*(void **)&thread);
        pool.threads++;
    }
    pthread_sigmask(SETMASK, &before, 0);
}

static void run_here(i64 begin, i64 end, body_t body, void *context) {
    for (i64 part = begin; part < end; part++) body(part, part + 1, context);
}

/* Whether a loop took long after the caller's part was done because a thread was without a core; how long one was
   at most, if that is known. */
int scorch_is_late(i64 started, i64 done, i64 ended, i64 waited) {
    return ended - done > LATE && ended - done > done - started && (waited < 0 || waited > LATE);
}

static void run_on_own(i64 begin, i64 end, body_t body, void *context) {
    i64 started = now(), done, threads = __atomic_load_n(&own_threads, __ATOMIC_RELAXED);
    if (threads > end - begin) threads = end - begin;
    if (threads < 2 && ++tries % TRIES == 0) __atomic_store_n(&own_threads, 2, __ATOMIC_RELAXED);
    if (threads < 2 || pthread_mutex_trylock(&pool.used)) {
        run_here(begin, end, body, context);
        return;
    }
    start(threads - 1);
    pthread_mutex_lock(&pool.lock);
    pool.body = body;
    pool.context = context;
    pool.end = end;
    pool.most = threads - 1;
    pool.number++;
    __atomic_store_n(&pool.next, begin, __ATOMIC_RELAXED);
    pthread_cond_broadcast(&pool.begun);
    pthread_mutex_unlock(&pool.lock);
    run_parts(body, context, end);
    done = now();
    pthread_mutex_lock(&pool.lock);
    while (pool.inside) pthread_cond_wait(&pool.left, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
    pthread_mutex_unlock(&pool.used);
    threads = scorch_is_late(started, done, now(), -1) ? threads / 2 : 2 * threads;
    tries = 0;
    __atomic_store_n(&own_threads, threads < MOST_THREADS ? threads : MOST_THREADS, __ATOMIC_RELAXED);
}

static i64 count_late(i64 more) {
    i64 count = __atomic_load_n(&late_loops, __ATOMIC_RELAXED) + more;
    count = count < 0 ? 0 : count > MOST_LATE ? MOST_LATE : count;
    __atomic_store_n(&late_loops, count, __ATOMIC_RELAXED);
    return count;
}

/* A loop whose parts tell when the caller has done its own, and, if is_timed, when the last one was done, and how long
   one was without a core at most, from the beginning of the loop on. */
typedef struct { body_t body; void *context; i64 first, started, done, last, waited; int is_timed; } watched;

static void raise_to(i64 *most, i64 number) {
    i64 before = __atomic_load_n(most, __ATOMIC_RELAXED);
    while (number > before &&
           !__atomic_compare_exchange_n(most, &before, number, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

static void run_timed(i64 begin, i64 end, watched *watch) {
    const i64 before = read_clock(THREAD_TIME);
    watch->body(begin, end, watch->context);
    const i64 last = now();
    raise_to(&watch->waited, last - watch->started - (read_clock(THREAD_TIME) - before));
    raise_to(&watch->last, last);
}

/* How long a thread was without a core: one with a part, or the caller, which is woken up when the last one is done */
static i64 time_without_core(const watched *watch, i64 ended) {
    if (!watch->is_timed) return -1;
    return ended - watch->last > watch->waited ? ended - watch->last : watch->waited;
}

static void run_watched(i64 begin, i64 end, void *given) {
    watched *watch = given;
    if (watch->is_timed) run_timed(begin, end, watch);
    else watch->body(begin, end, watch->context);
    if (begin == watch->first) watch->done = now();
}

int scorch_parallel_for(i64 begin, i64 end, i64 grain, body_t body, void *context) {
    watched watch = {body, context, begin, now(), 0, 0, 0, __atomic_load_n(&late_loops, __ATOMIC_RELAXED) > 0};
    i64 spent = -1;
    if (watch.started < __atomic_load_n(&scorch_busy_until, __ATOMIC_RELAXED)) {
        run_on_own(begin, end, body, context);
        return 0;
    }
    if (watch.is_timed) spent = read_clock(OWN_TIME);
    int status = torch_loop(begin, end, grain, run_watched, &watch);
    i64 ended = now();
    if (watch.done && scorch_is_late(watch.started, watch.done, ended, time_without_core(&watch, ended))) {
        if (count_late(PER_LATE) < ENOUGH) return status;
        if (spent >= 0 && scorch_has_all_cores(read_clock(OWN_TIME) - spent, ended - watch.started))
            __atomic_store_n(&next_wait, FIRST_WAIT, __ATOMIC_RELAXED);
        i64 wait = __atomic_load_n(&next_wait, __ATOMIC_RELAXED);
        __atomic_store_n(&scorch_busy_until, ended + wait, __ATOMIC_RELAXED);
        __atomic_store_n(&next_wait, 2 * wait < LAST_WAIT ? 2 * wait : LAST_WAIT, __ATOMIC_RELAXED);
    } else {
        if (!count_late(-1)) __atomic_store_n(&next_wait, FIRST_WAIT, __ATOMIC_RELAXED);
    }
    return status;
}

/* After a fork: the child has none of the threads, and locks may be held by those. */
void scorch_forget_threads(void) {
    pthread_mutex_init(&pool.used, 0);
    pool.is_ready = pool.threads = 0;
    pool.number = pool.end = pool.inside = 0;
}
#endif

static void no_part(i64 begin, i64 end, void *context) { (void)begin, (void)end, (void)context; }

void scorch_set_torch_loop(loop_t loop, i64 count) {
    torch_loop = loop;
#ifndef _WIN32
    cores = count;
#else
    (void)count;
#endif
    scorch_forget_threads();
}

/* The shortest of ``times`` loops of ``threads`` parts that do nothing, in nanoseconds; of fewer, but some, where
   they take longer than ``limit`` together. The first one, in which threads may be created, does not count. */
i64 scorch_time_of_loop(i64 threads, i64 times, i64 limit) {
#ifdef _WIN32
    (void)threads, (void)times, (void)limit;
    return 0;
#else
    i64 best = -1, ended;
    torch_loop(0, threads, 1, no_part, 0);
    limit += ended = now();
    for (i64 done = 0; done < times && (done < FEWEST_TIMED || ended < limit); done++) {
        const i64 began = ended;
        torch_loop(0, threads, 1, no_part, 0);
        ended = now();
        if (best < 0 || ended - began < best) best = ended - began;
    }
    return best;
#endif
}
