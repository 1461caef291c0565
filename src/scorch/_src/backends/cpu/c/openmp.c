typedef void (*body_t)(long long, long long, void *);
typedef struct { long long begin, end, most; body_t body; void *context; } work_t;

static struct {
    void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
    int (*max_threads)(void), (*in_parallel)(void), (*num_threads)(void), (*thread_num)(void);
} openmp;

void scorch_set_openmp(void *const *functions) {
    __builtin_memcpy(&openmp, functions, sizeof openmp);
}

static void run_share(void *given) {
    work_t *work = given;
    long long threads = openmp.num_threads() < work->most ? openmp.num_threads() : work->most;
    long long share = (work->end - work->begin + threads - 1) / threads;
    long long begin = work->begin + share * openmp.thread_num(), end = begin + share;
    if (end > work->end) end = work->end;
    if (begin < end) work->body(begin, end, work->context);
}

int scorch_parallel_for(long long begin, long long end, long long grain, body_t body, void *context) {
    work_t work = {begin, end, (end - begin + grain - 1) / grain, body, context};
    if (begin >= end) return 0;
    if (work.most <= 1 || openmp.max_threads() <= 1 || openmp.in_parallel()) body(begin, end, context);
    else openmp.parallel(run_share, &work, 0, 0); /* always of all threads: a smaller team would end some */
    return 0;
}
