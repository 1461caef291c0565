void *malloc(unsigned long);
void *realloc(void *, unsigned long);
void free(void *);
void *memset(void *, int, unsigned long);
void *memcpy(void *, const void *, unsigned long);
void *PyThread_allocate_lock(void);
int PyThread_acquire_lock(void *, int);
void PyThread_release_lock(void *);
#ifdef __linux__
void *mmap(void *, unsigned long, int, int, int, long);
int munmap(void *, unsigned long);
int madvise(void *, unsigned long, int);
#endif

#define DIMS 16
#define SHARED 524288ul /* bytes that several threads set to zero */
#define TOGETHER 16384ul /* bytes of small tensors that share a block of memory */

/* A tensor's description; a small one has its values behind it, a large one in pages of its own. */
typedef struct holder {
    managed_t managed;
    long long extents[DIMS];
    void *pages;
    unsigned long bytes; /* of pages */
    struct holder *next; /* in the pool, the last freed first */
    long *users;         /* of the block that several small tensors share, which begins with their number */
    void *kernels;       /* what a kernel has allocated for the values */
} holder_t;

static holder_t *pool;
static unsigned long pooled, most_pooled;
static void *pool_lock;

#ifdef __linux__
static void *map_pages(unsigned long bytes) { /* aligned for huge pages */
    char *all = mmap(0, bytes + LARGE, 3, 0x22, -1, 0), *start;
    if ((long)all == -1) return 0;
    start = (char *)(((unsigned long)all + LARGE - 1) & ~(LARGE - 1));
    if (start > all) munmap(all, (unsigned long)(start - all));
    if (start < all + LARGE) munmap(start + bytes, (unsigned long)(all + LARGE - start));
    madvise(start, bytes, 14); /* MADV_HUGEPAGE */
    return start;
}
#else
#define map_pages(bytes) malloc(bytes)
#define munmap(pages, bytes) free(pages)
#endif

static void drop(holder_t *list) {
    while (list) {
        holder_t *next = list->next;
        munmap(list->pages, list->bytes);
        free(list);
        list = next;
    }
}

static holder_t *take_from_pool(unsigned long bytes) {
    holder_t **best = 0, *found;
    if (!pooled) return 0;
    PyThread_acquire_lock(pool_lock, 1);
    for (holder_t **at = &pool; *at; at = &(*at)->next)
        if ((*at)->bytes >= bytes && (*at)->bytes <= 2 * bytes && (!best || (*at)->bytes < (*best)->bytes))
            best = at;
    found = best ? *best : 0;
    if (found) *best = found->next, pooled -= found->bytes;
    PyThread_release_lock(pool_lock);
    return found;
}

static void keep_in_pool(holder_t *freed) { /* those that make the pool too large go, the oldest first */
    unsigned long total = 0;
    holder_t **at;
    freed->next = 0;
    if (freed->bytes > most_pooled) {
        drop(freed);
        return;
    }
    PyThread_acquire_lock(pool_lock, 1);
    freed->next = pool;
    pool = freed;
    for (at = &pool; *at && total + (*at)->bytes <= most_pooled; at = &(*at)->next) total += (*at)->bytes;
    holder_t *old = *at;
    *at = 0;
    pooled = total;
    PyThread_release_lock(pool_lock);
    drop(old);
}

static unsigned long empty_pool(void) {
    unsigned long before;
    holder_t *all;
    PyThread_acquire_lock(pool_lock, 1);
    before = pooled, all = pool;
    pool = 0, pooled = 0;
    PyThread_release_lock(pool_lock);
    drop(all);
    return before;
}

static void release(managed_t *managed) {
    holder_t *holder = (holder_t *)managed;
    if (holder->users) { /* torch may free tensors on any thread */
        if (!__atomic_sub_fetch(holder->users, 1, __ATOMIC_ACQ_REL)) free(holder->users);
    } else if (holder->pages) keep_in_pool(holder);
    else {
        free(holder->kernels);
        free(holder);
    }
}

static char *inside(holder_t *holder) { /* where the values of a small tensor begin */
    return (char *)(((unsigned long)(holder + 1) + 63) & ~63ul);
}

static unsigned long room_for(unsigned long bytes) { /* of a small tensor and its description */
    return (sizeof(holder_t) + 64 + bytes + 63) & ~63ul;
}

static managed_t *describe(holder_t *made, long long code, long long bits, int ndim, const long long *extents) {
    made->managed.major = 1, made->managed.minor = 0, made->managed.flags = 0;
    made->managed.context = 0, made->managed.deleter = release;
    tensor_t *tensor = &made->managed.tensor;
    tensor->device = 1, tensor->device_id = 0, tensor->ndim = ndim, tensor->lanes = 1, tensor->offset = 0;
    tensor->code = (unsigned char)code, tensor->bits = (unsigned char)bits;
    tensor->shape = made->extents, tensor->strides = 0;
    for (int d = 0; d < ndim; d++) made->extents[d] = extents[d];
    return &made->managed;
}

/* A tensor of our own, in pages of the pool from ``least`` bytes on; *zeroed says whether it is known to be zero. */
static managed_t *own_from(unsigned long least, long long code, long long bits, int ndim, const long long *extents,
                           int *zeroed) {
    unsigned long bytes = (unsigned long)bits / 8;
    holder_t *made;
    *zeroed = 0;
    for (int d = 0; d < ndim; d++) {
        if (extents[d] && bytes > 0x3ffffffffffffffful / (unsigned long)extents[d]) return 0;
        bytes *= (unsigned long)extents[d];
    }
    if (bytes < least) {
        made = malloc(sizeof(holder_t) + 64 + bytes);
        if (!made) return 0;
        made->pages = 0;
        made->managed.tensor.data = inside(made);
    } else {
        const unsigned long unit = bytes < LARGE ? LARGE / 16 : LARGE; /* of less than a huge page, little is left over */
        bytes = (bytes + unit - 1) & ~(unit - 1);
        made = take_from_pool(bytes);
        if (!made) {
            made = malloc(sizeof(holder_t));
            if (!made) return 0;
            made->pages = map_pages(bytes);
            if (!made->pages && empty_pool()) made->pages = map_pages(bytes);
            if (!made->pages) {
                free(made);
                return 0;
            }
            made->bytes = bytes;
#ifdef __linux__
            *zeroed = 1;
#endif
        }
        made->managed.tensor.data = made->pages;
    }
    made->users = 0, made->kernels = 0;
    return describe(made, code, bits, ndim, extents);
}

static managed_t *own(long long code, long long bits, int ndim, const long long *extents, int *zeroed) {
    return own_from(LARGE, code, bits, ndim, extents, zeroed);
}

/* One of one dimension, also in pages of the pool if it is not short: malloc would get new ones again and again. */
static managed_t *own_pooled(long long code, long long bits, long long count) {
    int zeroed;
    return own_from(LARGE / 4, code, bits, 1, &count, &zeroed);
}

/* One of one dimension, around an array that a kernel has allocated; what it does not use is returned. */
static managed_t *own_array(void *array, long long code, long long bits, long long count) {
    holder_t *made = malloc(sizeof(holder_t));
    if (!made) return 0;
    void *cut = realloc(array, (unsigned long)(count * bits / 8));
    made->pages = 0, made->users = 0, made->kernels = cut ? cut : array;
    made->managed.tensor.data = made->kernels;
    return describe(made, code, bits, 1, &count);
}

/* The tensors of a small sparse result, as scorch_slots describes it, in one block, which is freed with the last of
   them; 0: none is made. */
static int own_together(managed_t **made, int parts, const long long *result, long long rows, long long bound) {
    unsigned long total = 64, used = 64;
    if (rows > (long long)TOGETHER || bound > (long long)TOGETHER) return 0;
    for (int part = 0; part < parts; part++)
        total += room_for((unsigned long)(part ? bound : rows) * (unsigned long)result[part < parts - 1 ? 2 : 4] / 8);
    long *users = total <= TOGETHER ? malloc(total) : 0;
    if (!users) return 0;
    *users = parts;
    for (int part = 0; part < parts; part++) {
        long long bits = result[part < parts - 1 ? 2 : 4], length = part ? bound : rows;
        holder_t *holder = (holder_t *)((char *)users + used);
        holder->pages = 0, holder->users = users, holder->kernels = 0;
        holder->managed.tensor.data = inside(holder);
        made[part] = describe(holder, part < parts - 1 ? 0 : result[3], bits, 1, &length);
        used += room_for((unsigned long)length * (unsigned long)bits / 8);
    }
    return 1;
}

/* The same tensor of one dimension with fewer elements; a small one gives back what it leaves, if that is more than it
   keeps. One thread has not written to the pages that a large one leaves. */
static managed_t *shrunk(managed_t *managed, long long count) {
    holder_t *holder = (holder_t *)managed;
    unsigned long size = holder->managed.tensor.bits / 8, used = (unsigned long)count * size;
    unsigned long room = (unsigned long)holder->extents[0] * size;
    holder->extents[0] = count;
    if (!holder->pages && !holder->users && used < room / 2 && room > 4096) {
        char *before = (char *)holder;
        long offset = (char *)holder->managed.tensor.data - before;
        holder_t *moved = realloc(holder, (unsigned long)offset + used);
        if (!moved) return managed;
        holder = moved;
        holder->managed.tensor.data = (char *)holder + offset;
        holder->managed.tensor.shape = holder->extents;
    }
    return &holder->managed;
}

/* Bytes that are set to zero by threads that have equal shares of them */
typedef struct { char *to; unsigned long bytes; long long threads; } cleared_t;

static void clear_shares(long long begin, long long end, void *context) {
    const cleared_t *all = context;
    const unsigned long share = (all->bytes / (unsigned long)all->threads + 64) & ~63ul;
    unsigned long first = share * (unsigned long)begin, behind = share * (unsigned long)end;
    if (behind > all->bytes) behind = all->bytes;
    if (first < behind) memset(all->to + first, 0, behind - first);
}

/* Set bytes to zero on the threads of a kernel, whose first slots are the function that shares loops, and how many
   threads do. */
static void clear(char *to, unsigned long bytes, const long long *slots) {
    cleared_t all = {to, bytes, 1};
    if (!slots[0] || slots[1] < 2 || bytes < SHARED) clear_shares(0, 1, &all);
    else {
        all.threads = slots[1];
        ((int (*)(long long, long long, long long, void (*)(long long, long long, void *), void *))slots[0])(
            0, slots[1], 1, clear_shares, &all);
    }
}

/* The same tensor with fewer elements. If those are few, they are copied, and the pages serve the next call: new ones
   would take longer than the copy. */
static managed_t *cut(managed_t *whole, long long count) {
    holder_t *holder = (holder_t *)whole;
    unsigned long used = (unsigned long)count * whole->tensor.bits / 8;
    managed_t *made = 0;
    if (holder->pages && used < holder->bytes / 8) made = own_pooled(whole->tensor.code, whole->tensor.bits, count);
    if (!made) return shrunk(whole, count);
    memcpy(made->tensor.data, whole->tensor.data, used);
    whole->deleter(whole);
    return made;
}
