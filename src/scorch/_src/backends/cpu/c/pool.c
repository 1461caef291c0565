/* Loops on torch's threads while the machine is quiet, and on threads of our own while it is not.
 *
 * torch's loops end when every thread has reported, also one that got no core to run on: beside other processes
 * the caller waits milliseconds, often without giving up its own core, for a thread that did nothing. So the system is
 * asked now and then how many threads want a core: with more than there are cores, the machine is busy for a while.
 * Then the caller takes all parts that nobody else has begun, and waits only for those that somebody has; if that
 * takes long as well, fewer threads are asked, in the end none. Afterwards the system is asked again.
 * Not every system says, nor knows who shares the cores that are left to this process. So the time from the end of
 * the caller's part to that of the loop is watched. Where it is long, parts of the next loops are timed: if threads
 * have been without a core, and not just had more to do than the caller, that time is a debt, which other loops pay off
 * by a share of the work they save the caller; if it is not paid off before the next such loop, the machine is busy.
 * Where it is this process that takes all the cores, by threads of another library that wait for work in vain, it
 * soon ends, and torch's threads are tried again at once.
 */
typedef long long i64;
typedef void (*body_t)(i64, i64, void *);
typedef int (*loop_t)(i64, i64, i64, body_t, void *);

static loop_t torch_loop;
i64 scorch_busy_until; /* of the clock that Python calls monotonic; 0 if it has not been busy since a quiet loop */

#ifdef _WIN32
void scorch_set_openmp(void *const *functions) { (void)functions; }
int scorch_openmp_loop(i64 begin, i64 end, i64 grain, body_t body, void *context) {
    return (void)grain, body(begin, end, context), 0;
}
int scorch_parallel_for(i64 begin, i64 end, i64 grain, body_t body, void *context) {
    return torch_loop(begin, end, grain, body, context);
}
void scorch_forget_threads(void) {}
void scorch_forget_load(void) {}
int scorch_is_busy(i64 time) { return (void)time, 0; }
i64 scorch_left_cores(i64 *args) { return (void)args, 0; }
#else

enum { MOST_THREADS = 256, OPAQUE = 256 };
enum { TRIES = 16 }; /* loops of one thread before two are tried again */
enum { LATE = 200000, FIRST_WAIT = 2000000, LAST_WAIT = 160000000 }; /* nanoseconds */
enum { AWAKE = 1000000, WOKEN = 10000000 }; /* how long threads spin after a loop; later, they may wake up for so long */
enum { BETWEEN_LOOKS = 1000000, MOST_DEBT = 50000000 };
enum { SPARE = 8 }; /* one thread too many for so many cores is no crowd */
enum { PAID = 4, WORTH = 4 }; /* a part of the work pays off debt; to try torch's threads takes a part of the time */
enum { FEWEST_TIMED = 3 };
enum { APART = 128 }; /* bytes that processors fetch together, two lines of their caches */
#ifdef __APPLE__
enum { MONOTONIC = 6, OWN_TIME = 12, THREAD_TIME = 16, SETMASK = 3 };
#else
enum { MONOTONIC = 1, OWN_TIME = 2, THREAD_TIME = 3, SETMASK = 2 };
#endif

int clock_gettime(int, void *);
int open(const char *, int, ...);
long read(int, void *, unsigned long);
int close(int);
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

/* of the library that torch's own loops run on, GNU's or one that answers to its names */
static struct {
    void (*run)(void (*)(void *), void *, unsigned, unsigned);
    int (*most_threads)(void), (*is_inside)(void), (*threads)(void), (*thread)(void);
} openmp;

static i64 next_wait, own_threads, tries, debt;
static i64 last_ended; /* of loops on torch's threads */
static i64 looked, spent_then; /* when the system was asked, and the time that all threads had run for */
static i64 others; /* threads of other processes that wanted a core then, since there were too few; else 0 */

static i64 cores = MOST_THREADS, machine_cores = MOST_THREADS; /* that this process may use, and all */
const char *scorch_load_file = "/proc/loadavg"; /* such as 1.50 1.20 0.90 3/250 4711: three threads want a core */

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
   at most, if that is known. Threads that were asleep may be put on a core that is taken, until the next tick. */
int scorch_is_late(i64 started, i64 done, i64 ended, i64 waited, i64 slept) {
    const i64 usual = slept ? WOKEN : LATE;
    return ended - done > usual && ended - done > done - started && (waited < 0 || waited > usual);
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
    threads = scorch_is_late(started, done, now(), -1, 0) ? threads / 2 : 2 * threads;
    tries = 0;
    __atomic_store_n(&own_threads, threads < MOST_THREADS ? threads : MOST_THREADS, __ATOMIC_RELAXED);
}

static i64 owe(i64 more) {
    i64 sum = __atomic_load_n(&debt, __ATOMIC_RELAXED) + more;
    sum = sum < 0 ? 0 : sum > MOST_DEBT ? MOST_DEBT : sum;
    __atomic_store_n(&debt, sum, __ATOMIC_RELAXED);
    return sum;
}

/* How many threads of all processes have a core or wait for one; 0 where the system does not say */
static i64 count_running(void) {
    enum { CLOSED_BY_EXEC = 02000000, SPACES = 3 }; /* as Linux counts, which has the file */
    char text[128];
    const int file = open(scorch_load_file, CLOSED_BY_EXEC);
    const long length = file < 0 ? 0 : read(file, text, sizeof text);
    i64 running = 0;
    int spaces = 0;
    if (file < 0) return 0;
    close(file);
    for (long at = 0; at < length && text[at] != '/'; at++) {
        if (text[at] == ' ') spaces++;
        else if (spaces == SPACES && text[at] >= '0' && text[at] <= '9') running = 10 * running + (text[at] - '0');
    }
    return running;
}

/* Busy for at least as long as given, and each time for longer than the last if that ended just now */
static void be_busy(i64 from, i64 least) {
    i64 wait = __atomic_load_n(&next_wait, __ATOMIC_RELAXED);
    __atomic_store_n(&next_wait, 2 * wait < LAST_WAIT ? 2 * wait : LAST_WAIT, __ATOMIC_RELAXED);
    __atomic_store_n(&scorch_busy_until, from + (wait > least ? wait : least), __ATOMIC_RELAXED);
}

/* How many of the threads that want a core are not ours, which have run for so long in some time. */
i64 scorch_count_others(i64 running, i64 spent, i64 time) {
    const i64 own = time > 0 && spent > time ? (spent + time - 1) / time : 1;
    return running > own ? running - own : 0;
}

/* Ask the system whether more threads want a core than there are cores, in which case the machine is busy. */
static int look(i64 time) {
    const i64 spent = read_clock(OWN_TIME);
    const i64 since = time - __atomic_exchange_n(&looked, time, __ATOMIC_RELAXED);
    const i64 before = __atomic_exchange_n(&spent_then, spent, __ATOMIC_RELAXED);
    const i64 running = count_running(), is_crowd = running > machine_cores + machine_cores / SPARE;
    if (is_crowd || __atomic_load_n(&others, __ATOMIC_RELAXED))
        __atomic_store_n(&others, scorch_count_others(running, spent - before, since), __ATOMIC_RELAXED);
    if (!is_crowd) return 0;
    if (scorch_has_all_cores(spent - before, since)) __atomic_store_n(&next_wait, FIRST_WAIT, __ATOMIC_RELAXED);
    be_busy(time, 0);
    return 1;
}

/* Whether loops keep off torch's threads at a time. */
int scorch_is_busy(i64 time) {
    i64 until = __atomic_load_n(&scorch_busy_until, __ATOMIC_RELAXED);
    if (time < until) return 1;
    if (!until && time - __atomic_load_n(&looked, __ATOMIC_RELAXED) < BETWEEN_LOOKS) return 0;
    if (look(time)) return 1;
    if (until) __atomic_compare_exchange_n(&scorch_busy_until, &until, 0, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return 0;
}

/* How many cores others leave to as many of torch's threads as args say, at least one; 0: enough for all of them.
   Once there were too few, they are too few until those threads would fit beside the others. */
i64 scorch_left_cores(i64 *args) {
    const int is_busy = scorch_is_busy(now());
    const i64 taken = __atomic_load_n(&others, __ATOMIC_RELAXED), most = machine_cores + machine_cores / SPARE;
    if (!taken) return is_busy; /* found out from loops that took long: nobody knows how many others there are */
    if (taken + *args <= most) return 0;
    return taken < machine_cores ? machine_cores - taken : 1;
}

/* A loop whose parts tell when the caller has done its own, and, if is_timed, when the last one was done, and how long
   one was without a core at most, from the beginning of the loop on. What all threads read is apart from what is
   written meanwhile, which would take it out of their caches. */
typedef struct {
    body_t body;
    void *context;
    i64 first, end, most, started;
    int is_timed;
    i64 done __attribute__((aligned(APART)));
    i64 last, waited;
} watched;

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

static void run_share(void *given) {
    watched *watch = given;
    const i64 threads = openmp.threads() < watch->most ? openmp.threads() : watch->most;
    const i64 share = (watch->end - watch->first + threads - 1) / threads;
    const i64 begin = watch->first + share * openmp.thread(), end = begin + share;
    if (begin < watch->end) run_watched(begin, end < watch->end ? end : watch->end, watch);
}

static void run_on_openmp(watched *watch) {
    if (watch->most <= 1 || openmp.most_threads() <= 1 || openmp.is_inside()) run_watched(watch->first, watch->end, watch);
    else openmp.run(run_share, watch, 0, 0); /* always all threads: a smaller team would end some */
}

static watched watch_of(i64 begin, i64 end, i64 grain, body_t body, void *context) {
    watched watch = {body, context, begin, end, (end - begin + grain - 1) / grain, 0, 0, 0, 0, 0};
    return watch;
}

void scorch_set_openmp(void *const *functions) { __builtin_memcpy(&openmp, functions, sizeof openmp); }

/* Does what torch_parallel_for does, in less time */
int scorch_openmp_loop(i64 begin, i64 end, i64 grain, body_t body, void *context) {
    watched watch = watch_of(begin, end, grain, body, context);
    if (begin < end) run_on_openmp(&watch);
    return 0;
}

/* After a loop on torch's threads: whether these are to be tried again. */
static void judge(const watched *watch, i64 ended, i64 spent) {
    const i64 late = ended - watch->done, waited = time_without_core(watch, ended);
    const i64 before = __atomic_exchange_n(&last_ended, ended, __ATOMIC_RELAXED);
    if (!watch->done) return; /* the caller was given no part */
    if (!scorch_is_late(watch->started, watch->done, ended, waited, watch->started - before > AWAKE)) {
        if (!owe((watch->started - watch->done) / PAID)) __atomic_store_n(&next_wait, FIRST_WAIT, __ATOMIC_RELAXED);
    } else if (!look(ended) && owe(late) > late) { /* one alone is an accident */
        const int is_own = spent >= 0 && scorch_has_all_cores(read_clock(OWN_TIME) - spent, ended - watch->started);
        if (is_own) __atomic_store_n(&next_wait, FIRST_WAIT, __ATOMIC_RELAXED);
        be_busy(ended, is_own ? 0 : WORTH * late < LAST_WAIT ? WORTH * late : LAST_WAIT);
    }
}

int scorch_parallel_for(i64 begin, i64 end, i64 grain, body_t body, void *context) {
    watched watch = watch_of(begin, end, grain, body, context);
    watch.started = now();
    if (scorch_is_busy(watch.started)) {
        run_on_own(begin, end, body, context);
        return 0;
    }
    if (begin >= end) return 0;
    watch.is_timed = __atomic_load_n(&debt, __ATOMIC_RELAXED) > 0;
    const i64 spent = watch.is_timed ? read_clock(OWN_TIME) : -1;
    int status = 0;
    if (torch_loop == scorch_openmp_loop) run_on_openmp(&watch);
    else status = torch_loop(begin, end, grain, run_watched, &watch);
    judge(&watch, now(), spent);
    return status;
}

void scorch_forget_load(void) {
    scorch_busy_until = debt = tries = looked = spent_then = others = last_ended = 0;
    next_wait = FIRST_WAIT, own_threads = MOST_THREADS;
}

/* After a fork: the child has none of the threads, and locks may be held by those. */
void scorch_forget_threads(void) {
    pthread_mutex_init(&pool.used, 0);
    pool.is_ready = pool.threads = 0;
    pool.number = pool.end = pool.inside = 0;
}
#endif

static void no_part(i64 begin, i64 end, void *context) { (void)begin, (void)end, (void)context; }

void scorch_set_torch_loop(loop_t loop, i64 count, i64 in_machine) {
    torch_loop = loop;
#ifndef _WIN32
    cores = count, machine_cores = in_machine;
#else
    (void)count, (void)in_machine;
#endif
    scorch_forget_threads();
    scorch_forget_load();
}

/* The shortest of ``times`` loops of ``threads`` parts that do nothing, in nanoseconds; of fewer, but some, where
   they take longer than ``limit`` together. The first one, in which threads may be created, does not count.
   -1 if the machine is busy, where some might take very long. */
i64 scorch_time_of_loop(i64 threads, i64 times, i64 limit) {
#ifdef _WIN32
    (void)threads, (void)times, (void)limit;
    return 0;
#else
    i64 best = -1, ended;
    if (scorch_is_busy(now())) return -1;
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
