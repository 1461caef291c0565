typedef void (*body_t)(long long, long long, void *);
typedef struct { long long begin, end; body_t body; void *context; } work_t;

static struct {
    void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
    int (*max_threads)(void), (*in_parallel)(void), (*num_threads)(void), (*thread_num)(void);
} openmp;

void scorch_set_openmp(void *const *functions) {
    __builtin_memcpy(&openmp, functions, sizeof openmp);
}

static void run_share(void *given) {
    work_t *work = given;
    long long threads = openmp.num_threads(), share = (work->end - work->begin + threads - 1) / threads;
    long long begin = work->begin + share * openmp.thread_num(), end = begin + share;
    if (end > work->end) end = work->end;
    if (begin < end) work->body(begin, end, work->context);
}

int scorch_parallel_for(long long begin, long long end, long long grain, body_t body, void *context) {
    work_t work = {begin, end, body, context};
    long long threads = openmp.max_threads(), most = (end - begin + grain - 1) / grain;
    if (begin >= end) return 0;
    if (threads > most) threads = most;
    if (threads <= 1 || openmp.in_parallel()) body(begin, end, context);
    else openmp.parallel(run_share, &work, (unsigned)threads, 0);
    return 0;
}
